// SPDX-License-Identifier: Apache-2.0
// Connector: how a sublayer meets the residual: its norms, the add and the rounding around a block,
// or the streams a model may have instead of one residual. Like a block, a row of functions over a
// config of its own (connectors/<name>.{h,cc}). Engine thread only, but for what needs no Pass.
#pragma once
#include "model/blocks/block.h"

namespace strata::model {

// One sublayer at its place: its connector's parameters and config, and its block's.
struct SublayerContext {
  const struct ConnectorOps* connector = nullptr;
  const BlockOps* block = nullptr;
  BlockContext outer;  // of the connector
  BlockContext inner;  // of the block
};

// What a sublayer keeps of a forward: the connector's part and the block's.
struct SublayerSaved {
  void* outer = nullptr;
  void* inner = nullptr;
};

struct ConnectorOps {
  std::string_view name;
  bool (*equal)(const void* a, const void* b);
  void (*add_params)(const void* config, int64_t hidden_size, ParamRows& rows);
  // Work of a token's forward that speeds are counted against, besides the matrices.
  double (*token_flops)(const void* config, int64_t hidden_size);
  // Bytes of a state and its gradient that move for a token, forward and backward, where they do so
  // apart from the block; of the compute type's so many bytes an element.
  double (*token_bytes)(const void* config, int64_t hidden_size, int64_t element_bytes);
  // Whether the block's output is an activation of its own, from which the next state is made
  // without the block's last product.
  bool saves_output;
  size_t saved_bytes;
  void (*construct)(void* saved);
  void (*allocate_saved)(Pass& pass, const SublayerContext& context, void* saved);
  // state [T, n D] to out [T, n D] of n streams (model/pass/streams.h), or to an empty out
  // (recompute).
  void (*forward)(Pass& pass, const SublayerContext& context, const SublayerSaved& saved,
                  TensorView state, TensorView out);
  // d [T, n D] f32: the gradient of out on entry, of state on return.
  void (*backward)(Pass& pass, const SublayerContext& context, const SublayerSaved& saved,
                   TensorView state, TensorView d);
};

// The row of a connector struct C with a Config, a Saved, and the functions above, typed.
template <typename C>
constexpr ConnectorOps connector_ops(std::string_view name) {
  using Config = typename C::Config;
  using Saved = typename C::Saved;
  static_assert(std::is_trivially_copyable_v<Saved> && alignof(Saved) <= 64);
  return {.name = name,
          .equal =
              [](const void* a, const void* b) {
                return *static_cast<const Config*>(a) == *static_cast<const Config*>(b);
              },
          .add_params =
              [](const void* config, int64_t hidden_size, ParamRows& rows) {
                C::add_params(*static_cast<const Config*>(config), hidden_size, rows);
              },
          .token_flops =
              [](const void* config, int64_t hidden_size) {
                if constexpr (requires(const Config& c) { C::token_flops(c, hidden_size); }) {
                  return C::token_flops(*static_cast<const Config*>(config), hidden_size);
                }
                return 0.0;
              },
          .token_bytes =
              [](const void* config, int64_t hidden_size, int64_t element_bytes) {
                if constexpr (requires(const Config& c) { C::token_bytes(c, hidden_size, 0); }) {
                  return C::token_bytes(*static_cast<const Config*>(config), hidden_size,
                                        element_bytes);
                }
                return 0.0;
              },
          .saves_output = C::kSavesOutput,
          .saved_bytes = sizeof(Saved),
          .construct = [](void* saved) { new (saved) Saved; },
          .allocate_saved =
              [](Pass& pass, const SublayerContext& context, void* saved) {
                C::allocate_saved(pass, context, *static_cast<Saved*>(saved));
              },
          .forward = C::forward,
          .backward = C::backward};
}

// A row with its config.
class Connector {
 public:
  template <typename Config>
  Connector(const ConnectorOps& ops, Config config)
      : ops_(&ops), config_(std::make_shared<const Config>(std::move(config))) {}

  [[nodiscard]] const ConnectorOps& ops() const { return *ops_; }
  [[nodiscard]] const void* config() const { return config_.get(); }
  friend bool operator==(const Connector& a, const Connector& b) {
    return a.ops_ == b.ops_ && (a.config_ == b.config_ || a.ops_->equal(a.config(), b.config()));
  }

 private:
  const ConnectorOps* ops_;
  std::shared_ptr<const void> config_;
};

struct Sublayer {
  Connector connector;
  Block block;
  friend bool operator==(const Sublayer&, const Sublayer&) = default;
};

// What a layer is made of, in order. Layers of equal config share a stack.
using LayerConfig = std::vector<Sublayer>;

}  // namespace strata::model
