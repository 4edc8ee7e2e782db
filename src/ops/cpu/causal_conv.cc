// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/causal_conv.h"

#include "ops/cpu/dispatch.h"

namespace strata::ops::cpu {
namespace {

CausalConvKernel kernel_args_of(const CausalConvArgs& args) {
  return {.x = args.x.data,
          .x_type = args.x.dtype,
          .x_stride = args.x.row_stride,
          .weight = args.weight.f32(),
          .bias = args.bias.empty() ? nullptr : args.bias.f32(),
          .silu = args.silu,
          .num_channels = args.x.shape[1],
          .num_taps = args.weight.shape[1],
          .segments = args.segments.data(),
          .num_segments = std::ssize(args.segments)};
}

// Calls body(begin, end) for blocks of channels.
template <typename Body>
void parallel_for_channel_blocks(CpuBackend& backend, const CausalConvArgs& args, Body&& body) {
  const int64_t elements_each = args.x.shape[0] * args.weight.shape[1] * kConvBlock;
  parallel_for_column_blocks(backend, args.x.shape[1], kConvBlock, elements_each, body);
}

}  // namespace

void causal_conv(CpuBackend& backend, const CausalConvArgs& args, TensorView y) {
  const HostAccess access(backend.allocator());
  const CausalConvKernel kernel = kernel_args_of(args);
  with_path(backend.path(), [&]<typename V>() {
    parallel_for_channel_blocks(backend, args, [&](int64_t begin, int64_t end) {
      causal_conv_block<V>(kernel, y.data, y.row_stride, begin, end);
    });
  });
}

void causal_conv_backward(CpuBackend& backend, const CausalConvArgs& args, TensorView d_y,
                          TensorView d_x, TensorView d_weight, TensorView d_bias) {
  const HostAccess access(backend.allocator());
  const CausalConvKernel kernel = kernel_args_of(args);
  const CausalConvGradients grads = {.d_y = d_y.data,
                                     .d_y_type = d_y.dtype,
                                     .d_y_stride = d_y.row_stride,
                                     .d_x = d_x.data,
                                     .d_x_type = d_x.dtype,
                                     .d_x_stride = d_x.row_stride,
                                     .d_weight = d_weight.empty() ? nullptr : d_weight.f32(),
                                     .d_bias = d_bias.empty() ? nullptr : d_bias.f32()};
  with_path(backend.path(), [&]<typename V>() {
    parallel_for_channel_blocks(backend, args, [&](int64_t begin, int64_t end) {
      causal_conv_backward_block<V>(kernel, grads, begin, end);
    });
  });
}

}  // namespace strata::ops::cpu
