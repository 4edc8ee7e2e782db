#include "ops/compressor.h"

#include <algorithm>
#include <cstring>

#include "ops/cpu/compressor.h"
#include "ops/cpu/dispatch.h"

namespace strata::ops {
namespace {

cpu::CompressorKernel checked(const Backend& backend, const CompressorArgs& args) {
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
  return {.kv = kv.f32(),
          .gate = args.gate.f32(),
          .row_stride = kv.row_stride,
          .bias = args.bias.f32(),
          .ratio = args.ratio(),
          .width = kv.cols(),
          .channels = args.channels(),
          .overlap = args.overlap,
          .segments = args.segments.data(),
          .num_segments = std::ssize(args.segments)};
}

int64_t num_entries(const CompressorArgs& args) {
  int64_t count = 0;
  for (const StateSegment& segment : args.segments) count += entries_of(segment, args.ratio());
  return count;
}

template <typename Body>
void for_blocks(Backend& backend, const CompressorArgs& args, Body&& body) {
  const int64_t channels = args.channels();
  const int64_t num_blocks = (channels + cpu::kCompressBlock - 1) / cpu::kCompressBlock;
  const int64_t terms = num_entries(args) * compressor_span(args.ratio(), args.overlap);
  cpu::for_range(backend, num_blocks, terms * cpu::kCompressBlock, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * cpu::kCompressBlock;
      body(first, std::min(channels, first + cpu::kCompressBlock));
    }
  });
}

// The rows that later windows may need.
void keep_rows(const CompressorArgs& args, const StateSegment& segment) {
  const int64_t span = compressor_span(args.ratio(), args.overlap);
  const int64_t width = args.kv.cols();
  const auto bytes = static_cast<size_t>(width) * sizeof(float);
  const int64_t count = std::min(span, segment.end - segment.begin);
  for (int64_t row = segment.end - count; row < segment.end; ++row) {
    const int64_t position = segment.first_position + row - segment.begin;
    float* slot = static_cast<float*>(segment.state) + position % span * 2 * width;
    std::memcpy(slot, args.kv.row(row), bytes);
    std::memcpy(slot + width, args.gate.row(row), bytes);
  }
}

}  // namespace

void compress(Backend& backend, const CompressorArgs& args, TensorView entries) {
  const cpu::CompressorKernel k = checked(backend, args);
  CHECK(backend.is_counting() || (entries.dtype == DType::kF32 && entries.dense() &&
                                  entries.shape == (Shape{num_entries(args), k.channels})),
        entries.shape.to_string(), num_entries(args), k.channels);
  cpu::with_path(backend.path(), [&]<typename V>() {
    for_blocks(backend, args, [&](int64_t begin, int64_t end) {
      cpu::compress_block<V>(k, entries.f32(), begin, end);
    });
  });
  if (backend.is_counting()) return;
  for (const StateSegment& segment : args.segments) {
    if (segment.state != nullptr) keep_rows(args, segment);
  }
}

void compress_backward(Backend& backend, const CompressorArgs& args, TensorView d_entries,
                       TensorView d_kv, TensorView d_gate, TensorView d_bias) {
  const cpu::CompressorKernel k = checked(backend, args);
  for (const StateSegment& segment : args.segments) {
    CHECK(segment.first_position == 0, segment.first_position);
  }
  CHECK(backend.is_counting() || (d_entries.dtype == DType::kF32 && d_entries.dense() &&
                                  d_entries.shape == (Shape{num_entries(args), k.channels})),
        d_entries.shape.to_string(), num_entries(args), k.channels);
  for (const TensorView* d : {&d_kv, &d_gate}) {
    CHECK(cpu::is_float(d->dtype) && d->dtype == d_kv.dtype && d->dense() &&
              d->shape == args.kv.shape,
          d->dtype, d->shape.to_string());
  }
  CHECK(d_bias.empty() ||
            (d_bias.dtype == DType::kF32 && d_bias.dense() && d_bias.shape == args.bias.shape),
        d_bias.shape.to_string());
  if (backend.is_counting()) return;
  for (const TensorView* d : {&d_kv, &d_gate}) {
    if (d->num_bytes() > 0) std::memset(d->data, 0, static_cast<size_t>(d->num_bytes()));
  }
  const cpu::CompressorGradients g = {.d_entries = d_entries.f32(),
                                      .type = d_kv.dtype,
                                      .d_kv = d_kv.data,
                                      .d_gate = d_gate.data,
                                      .d_bias = d_bias.empty() ? nullptr : d_bias.f32()};
  cpu::with_path(backend.path(), [&]<typename V>() {
    for_blocks(backend, args, [&](int64_t begin, int64_t end) {
      cpu::compress_backward_block<V>(k, g, begin, end);
    });
  });
}

}  // namespace strata::ops
