// SPDX-License-Identifier: Apache-2.0
// T tokens, D model width, R largest rank of an adapter.
#include "model/blocks/mtp_joined_input.h"

#include "model/embedding.h"
#include "model/linear.h"
#include "model/residual.h"

namespace strata::model {
namespace {

enum Key : uint8_t { kEmbedNorm, kHiddenNorm, kFc };

struct MtpJoinedInput {
  using Config = MtpJoinedInputConfig;
  static constexpr BlockGroup kGroup = BlockGroup::kMlp;

  struct Saved {
    TensorView embedded;   // [T, D] of the compute type
    TensorView fc_lora_h;  // [T, R]
  };

  static std::string find_config_fault(const Config&) { return {}; }
  static std::string describe(const Config&) { return "the hidden state and the next token"; }
  static CacheSpec cache_spec(const Config&, DType) { return {}; }
  static BlockWork work(const Config&) { return {}; }

  static void add_params(const Config& c, int64_t d, ParamRows& rows) {
    constexpr int kOrder = 64;  // behind every other block's
    const float one = 1.0f - c.norm_offset;
    rows.push_back(
        {.key = kEmbedNorm, .suffix = "pre_fc_norm_embedding.weight", .shape = {d}, .init = one});
    rows.push_back(
        {.key = kHiddenNorm, .suffix = "pre_fc_norm_hidden.weight", .shape = {d}, .init = one});
    // Whole on every rank: its outputs are the residual, which ranks do not divide.
    rows.push_back({.key = kFc,
                    .suffix = "fc.weight",
                    .shape = {d, 2 * d},
                    .lora = {.path = "fc", .order = kOrder}});
  }

  static double output_flops(const Pass& pass, const BlockContext& context) {
    return linear_flops(pass, context, kFc);
  }

  static void allocate_always_kept(Pass&, const BlockContext&, Saved&) {}
  static void allocate_saved(Pass& pass, const BlockContext& context, Saved& s) {
    const int64_t width = pass.weights.config().hidden_size;
    s.embedded =
        pass.allocate_saved("mtp_embedding", 0.0, pass.dtype(), {pass.num_tokens(), width});
    s.fc_lora_h = allocate_lora_h(pass, context, kFc);
  }

  static ops::RmsNormArgs norm_of(const BlockContext& context, Key key, TensorView x) {
    const auto& c = context.as<Config>();
    return norm_args(x, context.values(key), c.eps, c.norm_offset);
  }
  // [T, 2 D], from the scratch.
  static TensorView join(Pass& pass, const BlockContext& context, const Saved& s,
                         TensorView hidden) {
    const int64_t width = hidden.cols();
    const TensorView joined = pass.take(pass.dtype(), {hidden.rows(), 2 * width});
    ops::rms_norm(pass.backend, norm_of(context, kEmbedNorm, s.embedded),
                  joined.slice_cols(0, width), {});
    ops::rms_norm(pass.backend, norm_of(context, kHiddenNorm, hidden),
                  joined.slice_cols(width, 2 * width), {});
    return joined;
  }

  static void forward(Pass& pass, const BlockContext& context, Saved& s, TensorView hidden,
                      BlockOutput output) {
    const Scratch::Mark mark(pass.backend.scratch());
    if (!pass.is_computed(s.embedded)) embedding_forward(pass, s.embedded);
    linear_forward(pass, context, kFc, join(pass, context, s, hidden), output.add, s.fc_lora_h,
                   output.out);
  }

  static void backward(Pass& pass, const BlockContext& context, const Saved& s, TensorView hidden,
                       TensorView d_out, TensorView d_hidden) {
    const Scratch::Mark mark(pass.backend.scratch());
    const int64_t width = hidden.cols();
    const TensorView joined = join(pass, context, s, hidden);
    const TensorView d_joined = pass.take(DType::kF32, joined.shape);
    linear_backward(pass, context, kFc, joined, s.fc_lora_h, d_out, d_joined,
                    /*accumulate=*/false);
    // joined = [norm_e(embedded); norm_h(hidden)]
    ops::fill_zero(pass.backend, d_hidden);
    ops::rms_norm_backward(pass.backend, norm_of(context, kHiddenNorm, hidden), {},
                           d_joined.slice_cols(width, 2 * width), d_hidden,
                           pass.base_gradient(context.param(kHiddenNorm).index));
    const TensorView d_embedded = zeros(pass, s.embedded.shape);
    ops::rms_norm_backward(pass.backend, norm_of(context, kEmbedNorm, s.embedded), {},
                           d_joined.slice_cols(0, width), d_embedded,
                           pass.base_gradient(context.param(kEmbedNorm).index));
    embedding_backward(pass, d_embedded);
  }
};

}  // namespace

const BlockOps kMtpJoinedInput = block_ops<MtpJoinedInput>("mtp_joined_input");

}  // namespace strata::model
