// SPDX-License-Identifier: Apache-2.0
// T tokens, D model width and channels, K taps.
#include "model/blocks/short_conv.h"

#include <fmt/format.h>

#include <array>

#include "model/blocks/state_segments.h"
#include "model/linear.h"
#include "ops/causal_conv.h"
#include "ops/gated.h"

namespace strata::model {
namespace {

struct ShortConv {
  using Config = ShortConvConfig;
  static constexpr BlockGroup kGroup = BlockGroup::kAttention;
  enum Key : uint8_t { kIn, kOut, kConv, kInBias, kOutBias, kConvBias };
  static constexpr int kNumLinears = 2;

  struct Saved {
    TensorView projected;  // [T, 3 D] conv_proj: B, C and u
    std::array<TensorView, kNumLinears> lora_h;
  };

  static std::string find_config_fault(const Config& c) {
    if (c.taps >= 1 && c.taps <= ops::kMaxConvTaps) return {};
    return fmt::format("conv_L_cache: got {}, want 1 to {}", c.taps, ops::kMaxConvTaps);
  }

  static std::string describe(const Config& c) {
    return fmt::format("short convolution of {} channels, {} taps", c.width, c.taps);
  }

  static void add_params(const Config& c, int64_t d, ParamRows& rows) {
    // Where the first and the last projection of an attention are.
    constexpr int kInOrder = 0;
    constexpr int kOutOrder = 3;
    const auto add_matrix = [&](Key key, Key bias, std::string_view suffix, std::string_view path,
                                Shape shape, const RowShards& shards, int order) {
      rows.push_back({.key = key,
                      .suffix = suffix,
                      .shape = shape,
                      .shards = shards,
                      .bias = c.bias ? static_cast<int>(bias) : kNoKey,
                      .lora = {.path = path, .order = order}});
    };
    const RowShards channels = uneven_outputs_by(c.width, "channels");
    rows.push_back({.key = kConv,
                    .suffix = "conv.conv.weight",
                    .shape = {c.width, 1, c.taps},
                    .shards = channels,
                    .draw = ParamDraw::kNormal});
    if (c.bias) add_bias(kConvBias, "conv.conv.bias", c.width, channels, rows);
    // A rank has the rows of its channels of each of B, C and u.
    add_matrix(kIn, kInBias, "conv.in_proj.weight", "conv.in_proj", {3 * c.width, d}, channels,
               kInOrder);
    if (c.bias) add_bias(kInBias, "conv.in_proj.bias", 3 * c.width, channels, rows);
    add_matrix(kOut, kOutBias, "conv.out_proj.weight", "conv.out_proj", {d, c.width},
               gathered(channels), kOutOrder);
    if (c.bias) add_bias(kOutBias, "conv.out_proj.bias", d, {}, rows);
  }
  static void add_bias(Key key, std::string_view suffix, int64_t width, const RowShards& shards,
                       ParamRows& rows) {
    rows.push_back({.key = key, .suffix = suffix, .shape = {width}, .shards = shards});
  }

  static CacheSpec cache_spec(const Config& c, DType dtype) {
    return {.sequence_bytes = Arena::aligned((c.taps - 1) * c.width * dtype_bytes(dtype))};
  }

  // The convolution and the two products; backward makes them again and has two of each.
  static BlockWork work(const Config& c) {
    const auto flops = static_cast<double>(c.width * (2 * c.taps + 2));
    return {.token_flops = flops, .token_backward_flops = 3 * flops};
  }
  static double output_flops(const Pass& pass, const BlockContext& context) {
    return linear_flops(pass, context, kOut);
  }

  static void allocate_always_kept(Pass&, const BlockContext&, Saved&) {}

  static void allocate_saved(Pass& pass, const BlockContext& context, Saved& s) {
    s.projected = pass.allocate_saved("conv_proj", linear_flops(pass, context, kIn), pass.dtype(),
                                      {pass.num_tokens(), 3 * context.as<Config>().width});
    for (int key = 0; key < kNumLinears; ++key) {
      s.lora_h[static_cast<size_t>(key)] = allocate_lora_h(pass, context, key);
    }
  }

  // B, C and u as columns of a projection, or their gradients.
  struct Parts {
    TensorView b, c, u;  // [T, D]
  };
  static Parts parts_of(TensorView projected) {
    const int64_t width = projected.cols() / 3;
    return {.b = projected.slice_cols(0, width),
            .c = projected.slice_cols(width, 2 * width),
            .u = projected.slice_cols(2 * width, 3 * width)};
  }

  static TensorView take_rows(Pass& pass, const BlockContext& context, DType dtype) {
    return pass.take(dtype, {pass.num_tokens(), context.as<Config>().width});
  }

  // z = B * u, in scratch, as the convolution's input.
  static ops::CausalConvArgs make_conv_args(Pass& pass, const BlockContext& context,
                                            const Saved& s) {
    const auto& c = context.as<Config>();
    const Parts parts = parts_of(s.projected);
    const TensorView z = take_rows(pass, context, pass.dtype());
    ops::act_and_mul(pass.backend, ops::Activation::kIdentity, parts.b, parts.u, z);
    return {.x = z,
            .weight = context.values(kConv).reshape({c.width, c.taps}),
            .segments = make_state_segments(pass, context, 0),
            .bias = context.values(kConvBias),
            .silu = false};
  }

  static void forward(Pass& pass, const BlockContext& context, Saved& s, TensorView n,
                      BlockOutput output) {
    const Scratch::Mark mark(pass.backend.scratch());
    linear_forward(pass, context, kIn, n, {}, s.lora_h[kIn], s.projected);
    const ops::CausalConvArgs conv = make_conv_args(pass, context, s);
    const TensorView y = take_rows(pass, context, pass.dtype());
    ops::causal_conv(pass.backend, conv, y);
    ops::act_and_mul(pass.backend, ops::Activation::kIdentity, parts_of(s.projected).c, y, y);
    linear_forward(pass, context, kOut, y, output.add, s.lora_h[kOut], output.out);
  }

  // out = out_proj(C * conv(B * u)): writes the gradients of all three.
  static void parts_backward(Pass& pass, const BlockContext& context, const Saved& s,
                             TensorView d_out, const Parts& d) {
    const Scratch::Mark mark(pass.backend.scratch());
    const Parts parts = parts_of(s.projected);
    const ops::CausalConvArgs conv = make_conv_args(pass, context, s);
    const TensorView convolved = take_rows(pass, context, pass.dtype());
    const TensorView gated = take_rows(pass, context, pass.dtype());
    ops::causal_conv(pass.backend, conv, convolved);
    ops::act_and_mul(pass.backend, ops::Activation::kIdentity, parts.c, convolved, gated);
    const TensorView d_rows = take_rows(pass, context, pass.dtype());
    linear_backward(pass, context, kOut, gated, s.lora_h[kOut], d_out, d_rows, false);
    // gated = C * convolved
    ops::act_and_mul_backward(pass.backend, ops::Activation::kIdentity, parts.c, convolved, d_rows,
                              d.c, d_rows);
    // convolved = conv(z)
    TensorView d_weight = pass.base_gradient(context.param(kConv).index);
    if (!d_weight.empty()) d_weight = d_weight.reshape({d_weight.shape[0], d_weight.shape[2]});
    ops::causal_conv_backward(pass.backend, conv, d_rows, d_rows, d_weight,
                              pass.base_gradient(context.param(kConvBias).index));
    // z = B * u
    ops::act_and_mul_backward(pass.backend, ops::Activation::kIdentity, parts.b, parts.u, d_rows,
                              d.b, d.u);
  }

  static void backward(Pass& pass, const BlockContext& context, const Saved& s, TensorView n,
                       TensorView d_out, TensorView d_n) {
    CHECK(!pass.cached());
    const Scratch::Mark mark(pass.backend.scratch());
    const TensorView d_projected = pass.take(pass.dtype(), s.projected.shape);
    parts_backward(pass, context, s, d_out, parts_of(d_projected));
    linear_backward(pass, context, kIn, n, s.lora_h[kIn], d_projected, d_n, false);
  }
};

}  // namespace

const BlockOps kShortConv = block_ops<ShortConv>("short_conv");

}  // namespace strata::model
