#include "ops/causal_conv.h"

#include <algorithm>

#include "ops/cpu/causal_conv.h"
#include "ops/cpu/dispatch.h"

namespace strata::ops {
namespace {

void check_segments(const Backend& backend, const CausalConvArgs& args) {
  int64_t last_end = 0;
  for (const StateSegment& segment : args.segments) {
    CHECK(
        last_end <= segment.begin && segment.begin <= segment.end && segment.end <= args.x.shape[0],
        last_end, segment.begin, segment.end, args.x.shape[0]);
    CHECK(segment.first_position >= 0, segment.first_position);
    CHECK(segment.first_position == 0 || segment.state != nullptr || backend.is_counting(),
          segment.first_position);
    last_end = segment.end;
  }
}

cpu::CausalConvKernel checked(const Backend& backend, const CausalConvArgs& args) {
  CHECK(cpu::is_float(args.x.dtype) && args.x.shape.rank() == 2, args.x.dtype,
        args.x.shape.to_string());
  CHECK(args.weight.dtype == DType::kF32 && args.weight.shape.rank() == 2 && args.weight.dense() &&
            args.weight.shape[0] == args.x.shape[1],
        args.weight.shape.to_string(), args.x.shape.to_string());
  CHECK(1 <= args.weight.shape[1] && args.weight.shape[1] <= kMaxConvTaps,
        args.weight.shape.to_string());
  check_segments(backend, args);
  return {.x = args.x.data,
          .x_type = args.x.dtype,
          .x_stride = args.x.row_stride,
          .weight = args.weight.f32(),
          .num_channels = args.x.shape[1],
          .num_taps = args.weight.shape[1],
          .segments = args.segments.data(),
          .num_segments = std::ssize(args.segments)};
}

// Calls body(begin, end) for blocks of channels.
template <typename Body>
void for_blocks(Backend& backend, const CausalConvArgs& args, Body&& body) {
  const int64_t channels = args.x.shape[1];
  const int64_t num_blocks = (channels + cpu::kConvBlock - 1) / cpu::kConvBlock;
  const int64_t block_elements = args.x.shape[0] * args.weight.shape[1] * cpu::kConvBlock;
  cpu::for_range(backend, num_blocks, block_elements, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * cpu::kConvBlock;
      body(first, std::min(channels, first + cpu::kConvBlock));
    }
  });
}

}  // namespace

void causal_conv_silu(Backend& backend, const CausalConvArgs& args, TensorView y) {
  const cpu::CausalConvKernel kernel = checked(backend, args);
  CHECK(y.dtype == args.x.dtype && y.shape == args.x.shape, y.dtype, y.shape.to_string(),
        args.x.shape.to_string());
  cpu::with_path(backend.path(), [&]<typename V>() {
    for_blocks(backend, args, [&](int64_t begin, int64_t end) {
      cpu::causal_conv_silu_block<V>(kernel, y.data, y.row_stride, begin, end);
    });
  });
}

void causal_conv_silu_backward(Backend& backend, const CausalConvArgs& args, TensorView d_y,
                               TensorView d_x, TensorView d_weight) {
  const cpu::CausalConvKernel kernel = checked(backend, args);
  for (const StateSegment& segment : args.segments) {
    CHECK(segment.first_position == 0, segment.first_position);
  }
  CHECK(cpu::is_float(d_y.dtype) && d_y.shape == args.x.shape, d_y.dtype, d_y.shape.to_string());
  CHECK(cpu::is_float(d_x.dtype) && d_x.shape == args.x.shape, d_x.dtype, d_x.shape.to_string());
  CHECK(d_weight.empty() || (d_weight.dtype == DType::kF32 && d_weight.dense() &&
                             d_weight.shape == args.weight.shape),
        d_weight.dtype, d_weight.shape.to_string());
  const cpu::CausalConvGradients grads = {.d_y = d_y.data,
                                          .d_y_type = d_y.dtype,
                                          .d_y_stride = d_y.row_stride,
                                          .d_x = d_x.data,
                                          .d_x_type = d_x.dtype,
                                          .d_x_stride = d_x.row_stride,
                                          .d_weight = d_weight.empty() ? nullptr : d_weight.f32()};
  cpu::with_path(backend.path(), [&]<typename V>() {
    for_blocks(backend, args, [&](int64_t begin, int64_t end) {
      cpu::causal_conv_silu_backward_block<V>(kernel, grads, begin, end);
    });
  });
}

}  // namespace strata::ops
