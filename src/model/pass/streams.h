// SPDX-License-Identifier: Apache-2.0
// Streams: a residual of n streams (hyper-connections) in place of one. The state between sublayers
// is then [T, n, D], held as rows of n D values: it begins as n copies of the embedding, connectors
// read it and write it around their blocks, and the row of functions here reads it once more, for
// the final norm. Most models have one stream, which is the residual itself, and no Streams. Like a
// block, a row over a config of its own. T tokens, D model width. Engine thread only, but for what
// needs no Pass.
#pragma once
#include "model/blocks/block.h"

namespace strata::model {

struct StreamsOps {
  std::string_view name;
  bool (*equal)(const void* a, const void* b);
  // Outside the layers: suffixes come after "model.".
  void (*add_params)(const void* config, int64_t num_streams, int64_t hidden_size, ParamRows& rows);
  // state [T, n D] to out [T, D], both of the compute type.
  void (*collapse)(Pass& pass, const BlockContext& context, TensorView state, TensorView out);
  // d_out [T, D] f32; writes d_state [T, n D] f32 and accumulates what the pass asks for.
  void (*collapse_backward)(Pass& pass, const BlockContext& context, TensorView state,
                            TensorView d_out, TensorView d_state);
};

// The row of a struct S with a Config and the functions above, typed.
template <typename S>
constexpr StreamsOps streams_ops(std::string_view name) {
  using Config = typename S::Config;
  return {.name = name,
          .equal =
              [](const void* a, const void* b) {
                return *static_cast<const Config*>(a) == *static_cast<const Config*>(b);
              },
          .add_params =
              [](const void* config, int64_t num_streams, int64_t hidden_size, ParamRows& rows) {
                S::add_params(*static_cast<const Config*>(config), num_streams, hidden_size, rows);
              },
          .collapse = S::collapse,
          .collapse_backward = S::collapse_backward};
}

// A row with its config, and how many streams there are.
class Streams {
 public:
  template <typename Config>
  Streams(const StreamsOps& ops, int64_t count, Config config)
      : ops_(&ops), count_(count), config_(std::make_shared<const Config>(std::move(config))) {}

  [[nodiscard]] const StreamsOps& ops() const { return *ops_; }
  [[nodiscard]] int64_t count() const { return count_; }
  [[nodiscard]] const void* config() const { return config_.get(); }
  friend bool operator==(const Streams& a, const Streams& b) {
    return a.ops_ == b.ops_ && a.count_ == b.count_ &&
           (a.config_ == b.config_ || a.ops_->equal(a.config(), b.config()));
  }

 private:
  const StreamsOps* ops_;
  int64_t count_;
  std::shared_ptr<const void> config_;
};

}  // namespace strata::model
