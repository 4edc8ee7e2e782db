// SPDX-License-Identifier: Apache-2.0
#include "ops/compressor.h"

#include "ops/checks.h"
#include "ops/rows.h"
#include "ops/stage.h"

namespace strata::ops {
namespace {

void check_args(const Backend& backend, const CompressorArgs& args) {
  const TensorView& kv = args.kv;
  CHECK(kv.dtype == DType::kF32 && args.gate.dtype == DType::kF32 && kv.shape.rank() == 2 &&
            kv.shape == args.gate.shape && kv.row_stride == args.gate.row_stride,
        kv.shape.to_string(), args.gate.shape.to_string());
  CHECK(args.bias.dtype == DType::kF32 && args.bias.dense() && args.bias.cols() == kv.cols(),
        args.bias.shape.to_string(), kv.shape.to_string());
  CHECK(1 <= args.ratio() && args.ratio() <= kMaxCompressRatio, args.ratio());
  CHECK(!args.overlap || kv.cols() % 2 == 0, kv.cols());
  int64_t last_end = 0;
  for (const StateSegment& segment : args.segments) {
    CHECK(last_end <= segment.begin && segment.begin <= segment.end && segment.end <= kv.rows(),
          last_end, segment.begin, segment.end, kv.rows());
    CHECK(segment.first_position == 0 || segment.state != nullptr || backend.is_counting(),
          segment.first_position);
    last_end = segment.end;
  }
}

void check_entries(const Backend& backend, const CompressorArgs& args, TensorView entries) {
  if (backend.is_counting()) return;
  int64_t count = 0;
  for (const StateSegment& segment : args.segments) count += entries_of(segment, args.ratio());
  CHECK(entries.dtype == DType::kF32 && entries.dense() &&
            entries.shape == (Shape{count, args.channels()}),
        entries.shape.to_string(), count, args.channels());
}

}  // namespace

void compress(Backend& backend, const CompressorArgs& args, TensorView entries) {
  check_args(backend, args);
  check_entries(backend, args, entries);
  backend.call()->compressor.forward(backend, with_staged_segments(backend, args), entries);
}

void compress_backward(Backend& backend, const CompressorArgs& args, TensorView d_entries,
                       TensorView d_kv, TensorView d_gate, TensorView d_bias) {
  check_args(backend, args);
  for (const StateSegment& segment : args.segments) {
    CHECK(segment.first_position == 0, segment.first_position);
  }
  check_entries(backend, args, d_entries);
  for (const TensorView* d : {&d_kv, &d_gate}) {
    CHECK(is_float(d->dtype) && d->dtype == d_kv.dtype && d->dense() && d->shape == args.kv.shape,
          d->dtype, d->shape.to_string());
  }
  CHECK(d_bias.empty() ||
            (d_bias.dtype == DType::kF32 && d_bias.dense() && d_bias.shape == args.bias.shape),
        d_bias.shape.to_string());
  backend.call()->compressor.backward(backend, with_staged_segments(backend, args), d_entries, d_kv,
                                      d_gate, d_bias);
}

}  // namespace strata::ops
