// SPDX-License-Identifier: Apache-2.0
// T tokens, D model width, n streams, R largest rank of an adapter.
#include "model/blocks/mtp_input.h"

#include <fmt/format.h>

#include "model/embedding.h"
#include "model/linear.h"
#include "model/residual.h"

namespace strata::model {
namespace {

// Where each stream is a row.
struct StreamRows {
  RowGroups rows;
};

enum Key : uint8_t { kEmbedNorm, kStateNorm, kEmbedProj, kStateProj };

struct MtpInput {
  using Config = MtpInputConfig;
  static constexpr BlockGroup kGroup = BlockGroup::kMlp;

  struct Saved {
    TensorView embedded;      // [T, D] of the compute type
    TensorView embed_lora_h;  // [T, R]
    TensorView state_lora_h;  // [T n, R]
  };

  static std::string find_config_fault(const Config&) { return {}; }
  static std::string describe(const Config&) { return "the state and the next token"; }
  static CacheSpec cache_spec(const Config&, DType) { return {}; }
  static BlockWork work(const Config&) { return {}; }
  static void add_params(const Config&, int64_t d, ParamRows& rows) {
    constexpr int kFirstOrder = 64;  // behind every other block's
    const auto add = [&](Key key, std::string_view suffix, std::string_view path) {
      rows.push_back({.key = key,
                      .suffix = suffix,
                      .shape = {d, d},
                      .lora = {.path = path, .order = kFirstOrder + key}});
    };
    // Whole on every rank: their outputs are the residual, which ranks do not divide.
    rows.push_back({.key = kEmbedNorm, .suffix = "enorm.weight", .shape = {d}, .init = 1.0f});
    rows.push_back({.key = kStateNorm, .suffix = "hnorm.weight", .shape = {d}, .init = 1.0f});
    add(kEmbedProj, "e_proj.weight", "e_proj");
    add(kStateProj, "h_proj.weight", "h_proj");
  }

  static int64_t num_streams(const BlockContext& context) {
    return context.as<Config>().num_streams;
  }
  static double output_flops(const Pass& pass, const BlockContext& context) {
    return static_cast<double>(num_streams(context)) * linear_flops(pass, context, kStateProj);
  }

  static void allocate_always_kept(Pass&, const BlockContext&, Saved&) {}
  static void allocate_saved(Pass& pass, const BlockContext& context, Saved& s) {
    const int64_t width = pass.weights.config().hidden_size;
    s.embedded =
        pass.allocate_saved("mtp_embedding", 0.0, pass.dtype(), {pass.num_tokens(), width});
    s.embed_lora_h = allocate_lora_h(pass, context, kEmbedProj);
    const int64_t rank = largest_rank(pass.rows, context.layer, context.param(kStateProj).target);
    if (rank == 0) return;
    const int64_t n = num_streams(context);
    const double flops = static_cast<double>(n) * lora_flops(pass, context, kStateProj, rank);
    s.state_lora_h =
        pass.allocate_saved(kLoraTag, flops, pass.dtype(), {pass.num_tokens() * n, rank});
  }

  // [T n, D]: every stream a row.
  static TensorView by_row(const BlockContext& context, TensorView state) {
    const int64_t n = num_streams(context);
    return state.reshape({state.rows() * n, state.cols() / n});
  }
  // Rows of all streams by sequence and adapter.
  static const RowGroups& make_stream_rows(Pass& pass, const BlockContext& context) {
    RowGroups& rows = pass.lists.blocks.ensure_lists<StreamRows>().rows;
    rows.clear();
    for (const PassSequence& sequence : pass.sequences) {
      rows.add_sequence((sequence.end - sequence.begin) * num_streams(context), sequence.adapter);
    }
    return rows;
  }
  static ops::RmsNormArgs norm_of(const BlockContext& context, Key key, TensorView x) {
    return norm_args(x, context.values(key), context.as<Config>().eps, 0.0f);
  }
  // In the compute type, from the scratch.
  static TensorView normed(Pass& pass, const BlockContext& context, Key key, TensorView x) {
    const TensorView y = pass.take(pass.dtype(), x.shape);
    ops::rms_norm(pass.backend, norm_of(context, key, x), y, {});
    return y;
  }

  // The token's part of every stream, by row, from the scratch; without `wants_sum` only what
  // backward needs of it.
  static TensorView project_embedded_to_streams(Pass& pass, const BlockContext& context,
                                                const Saved& s, const Shape& state_shape,
                                                bool wants_sum) {
    const TensorView e = normed(pass, context, kEmbedNorm, s.embedded);
    const LinearWeights linear = linear_of(pass, context, kEmbedProj);
    if (!wants_sum) {
      linear_forward(pass, pass.rows, linear, e, {}, s.embed_lora_h, {});
      return {};
    }
    const TensorView of_token = pass.take(DType::kF32, s.embedded.shape);
    linear_forward(pass, pass.rows, linear, e, {}, s.embed_lora_h, of_token);
    const TensorView sum = pass.take(DType::kF32, state_shape);
    copy_to_streams(pass, of_token, sum);
    return by_row(context, sum);
  }

  static void forward(Pass& pass, const BlockContext& context, Saved& s, TensorView n,
                      BlockOutput output) {
    const Scratch::Mark mark(pass.backend.scratch());
    const TensorView state = by_row(context, n);
    if (!pass.is_computed(s.embedded)) embedding_forward(pass, s.embedded);
    // out = h_proj(norm_h(state)) + e_proj(norm_e(embedded)), the latter in f32
    const TensorView sum =
        project_embedded_to_streams(pass, context, s, n.shape, !output.out.empty());
    linear_forward(pass, make_stream_rows(pass, context), linear_of(pass, context, kStateProj),
                   normed(pass, context, kStateNorm, state), sum, s.state_lora_h,
                   output.out.empty() ? TensorView() : by_row(context, output.out));
  }

  static void backward(Pass& pass, const BlockContext& context, const Saved& s, TensorView n,
                       TensorView d_out, TensorView d_n) {
    const Scratch::Mark mark(pass.backend.scratch());
    token_backward(pass, context, s, d_out);
    const TensorView state = by_row(context, n);
    const TensorView h = normed(pass, context, kStateNorm, state);
    const TensorView d_h = pass.take(DType::kF32, h.shape);
    const LinearWeights linear = linear_of(pass, context, kStateProj);
    linear_backward(pass, make_stream_rows(pass, context), linear, h, s.state_lora_h,
                    by_row(context, d_out), d_h, /*accumulate=*/false,
                    pass.base_gradient(linear.weight_index));
    // h = norm_h(state)
    ops::fill_zero(pass.backend, d_n);
    ops::rms_norm_backward(pass.backend, norm_of(context, kStateNorm, state), {}, d_h,
                           by_row(context, d_n),
                           pass.base_gradient(context.param(kStateNorm).index));
  }

  // The token's part, of whose gradient every stream has a share.
  static void token_backward(Pass& pass, const BlockContext& context, const Saved& s,
                             TensorView d_out) {
    const Scratch::Mark mark(pass.backend.scratch());
    const TensorView d_token = sum_streams(pass, d_out, s.embedded.cols());
    const TensorView e = normed(pass, context, kEmbedNorm, s.embedded);
    const TensorView d_e = pass.take(DType::kF32, e.shape);
    linear_backward(pass, context, kEmbedProj, e, s.embed_lora_h, to_compute_dtype(pass, d_token),
                    d_e,
                    /*accumulate=*/false);
    // e = norm_e(embedded)
    const TensorView d_embedded = zeros(pass, e.shape);
    ops::rms_norm_backward(pass.backend, norm_of(context, kEmbedNorm, s.embedded), {}, d_e,
                           d_embedded, pass.base_gradient(context.param(kEmbedNorm).index));
    embedding_backward(pass, d_embedded);
  }
};

}  // namespace

const BlockOps kMtpInput = block_ops<MtpInput>("mtp_input");

}  // namespace strata::model
