// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/compressor.h"

#include <algorithm>
#include <cstring>

#include "ops/cpu/dispatch.h"

namespace strata::ops::cpu {
namespace {

CompressorKernel kernel_args_of(const CompressorArgs& args) {
  const TensorView& kv = args.kv;
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

// Calls body(begin, end) for blocks of channels.
template <typename Body>
void parallel_for_channel_blocks(CpuBackend& backend, const CompressorArgs& args, Body&& body) {
  const int64_t terms = num_entries(args) * compressor_span(args.ratio(), args.overlap);
  parallel_for_column_blocks(backend, args.channels(), kCompressBlock, terms * kCompressBlock,
                             body);
}

void fill_zero(const TensorView& view) {
  if (view.num_bytes() > 0) std::memset(view.data, 0, static_cast<size_t>(view.num_bytes()));
}

// The rows that later windows may need.
void store_state_rows(const CompressorArgs& args, const StateSegment& segment) {
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

void compress(CpuBackend& backend, const CompressorArgs& args, TensorView entries) {
  const HostAccess access(backend.allocator());
  const CompressorKernel k = kernel_args_of(args);
  with_path(backend.path(), [&]<typename V>() {
    parallel_for_channel_blocks(backend, args, [&](int64_t begin, int64_t end) {
      compress_block<V>(k, entries.f32(), begin, end);
    });
  });
  if (backend.is_counting()) return;
  for (const StateSegment& segment : args.segments) {
    if (segment.state != nullptr) store_state_rows(args, segment);
  }
}

void compress_backward(CpuBackend& backend, const CompressorArgs& args, TensorView d_entries,
                       TensorView d_kv, TensorView d_gate, TensorView d_bias) {
  const HostAccess access(backend.allocator());
  const CompressorKernel k = kernel_args_of(args);
  if (backend.is_counting()) return;
  fill_zero(d_kv);
  fill_zero(d_gate);
  const CompressorGradients g = {.d_entries = d_entries.f32(),
                                 .type = d_kv.dtype,
                                 .d_kv = d_kv.data,
                                 .d_gate = d_gate.data,
                                 .d_bias = d_bias.empty() ? nullptr : d_bias.f32()};
  with_path(backend.path(), [&]<typename V>() {
    parallel_for_channel_blocks(backend, args, [&](int64_t begin, int64_t end) {
      compress_backward_block<V>(k, g, begin, end);
    });
  });
}

}  // namespace strata::ops::cpu
