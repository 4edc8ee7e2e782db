// SPDX-License-Identifier: Apache-2.0
// Block: what a sublayer computes (an attention, an MLP), as a row of functions over a config of
// its own. A block declares its parameters, its cache and what it saves, and has forward and
// backward. Nothing outside lists blocks: a family's reader puts them into layers, everything else
// calls the row. To add one: blocks/x.{h,cc} with a config and a struct of static functions, and
//   const BlockOps kX = block_ops<X>("x");
// T tokens, D model width. Engine thread only, but for what needs no Pass.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "model/blocks/block_work.h"
#include "model/cache_spec.h"
#include "model/weights/param_rows.h"
#include "tensor/panel.h"
#include "tensor/view.h"

namespace strata::model {

struct Pass;

// What the math sees of one parameter: a view into the stack. Of experts the first one's that the
// rank has; its others lie behind it.
struct ParamView {
  PanelView panel;
  TensorView values;                       // what is not a matrix, f32
  size_t index = static_cast<size_t>(-1);  // in the weight table
  int target = -1;                         // among the layer's adapter targets
  int bias = kNoKey;
};

// A block's place in the model: its config and the parameters of its layer, by key.
struct BlockContext {
  const void* config = nullptr;
  std::span<const ParamView> params;
  int64_t layer = 0;
  int sublayer = 0;

  template <typename Config>
  [[nodiscard]] const Config& as() const {
    return *static_cast<const Config*>(config);
  }
  // Empty where the config asks for no such parameter.
  [[nodiscard]] const ParamView& param(int key) const {
    static constexpr ParamView kAbsent;
    const auto index = static_cast<size_t>(key);
    return index < params.size() ? params[index] : kAbsent;
  }
  [[nodiscard]] TensorView values(int key) const { return param(key).values; }
};

// Where a sublayer's result goes: out = add + result, rounded once. An empty out: only what
// backward needs is made (recompute).
struct BlockOutput {
  TensorView add;  // [T, D], or empty
  TensorView out;  // [T, D]
};

// What a client means by train_attn and train_mlp.
enum class BlockGroup : uint8_t { kAttention, kMlp };

struct BlockOps {
  std::string_view name;
  BlockGroup group;
  bool (*equal)(const void* a, const void* b);
  std::string (*find_config_fault)(const void* config);  // a sentence; empty when there is none
  std::string (*describe)(const void* config);  // for people: "16 heads and 8 for keys of 128"
  void (*add_params)(const void* config, int64_t hidden_size, ParamRows& rows);
  // Whether tensor ranks divide one of this config, or each has it whole; and what a rank runs of
  // one that they divide: the block of its units.
  bool (*divides)(const void* config);
  std::shared_ptr<const void> (*divide)(const void* config, const TensorShare& share);
  CacheSpec (*cache_spec)(const void* config, DType dtype);
  BlockWork (*work)(const void* config);
  // Work of the block's last product, which makes its output again from what it saved.
  double (*output_flops)(const Pass& pass, const BlockContext& context);
  // What backward needs, in memory of the pass's scratch: what is never recomputed, and the rest; a
  // Saved is plain data.
  size_t saved_bytes;
  void (*construct)(void* saved);
  void (*allocate_always_kept)(Pass& pass, const BlockContext& context, void* saved);
  void (*allocate_saved)(Pass& pass, const BlockContext& context, void* saved);
  // n [T, D]: the sublayer's input. Fills saved; what is kept and computed already stays.
  void (*forward)(Pass& pass, const BlockContext& context, void* saved, TensorView n,
                  BlockOutput output);
  // d_out [T, D] of the compute type; writes d_n [T, D] f32 and accumulates what the pass asks for.
  void (*backward)(Pass& pass, const BlockContext& context, const void* saved, TensorView n,
                   TensorView d_out, TensorView d_n);
  // Null but where the cache's ReplaySpec asks for it. Makes the state what the pass's rows leave:
  // the first of those that the pass before, which read drafts, had of each sequence.
  void (*replay)(Pass& pass, const BlockContext& context) = nullptr;
  // Where ranks have dealt sequences out, its backward exchanges rows with them before it adds to
  // any gradient, and then begins the turn of its layer (Pass::turn).
  bool exchanges_rows = false;
};

template <typename B>
constexpr auto replay_of() -> void (*)(Pass&, const BlockContext&) {
  if constexpr (requires { &B::replay; }) return B::replay;
  return nullptr;
}

template <typename B>
constexpr bool exchanges_rows_of() {
  if constexpr (requires { B::kExchangesRows; }) return B::kExchangesRows;
  return false;
}

// Whether tensor ranks divide a block.
template <typename B>
concept DividedBlock = requires(const typename B::Config& config, const TensorShare& share) {
  B::divide(config, share);
};

template <typename B>
bool is_divided([[maybe_unused]] const void* config) {
  if constexpr (requires(const typename B::Config& c) { B::divides(c); })
    return B::divides(*static_cast<const typename B::Config*>(config));
  else
    return DividedBlock<B>;
}

template <typename B>
std::shared_ptr<const void> divided_config_of([[maybe_unused]] const void* config,
                                              [[maybe_unused]] const TensorShare& share) {
  if constexpr (DividedBlock<B>) {
    using Config = typename B::Config;
    return std::make_shared<const Config>(B::divide(*static_cast<const Config*>(config), share));
  } else {
    return nullptr;
  }
}

// The row of a block struct B with a Config, a Saved, and the functions above, typed.
template <typename B>
constexpr BlockOps block_ops(std::string_view name) {
  using Config = typename B::Config;
  using Saved = typename B::Saved;
  static_assert(std::is_trivially_copyable_v<Saved> && alignof(Saved) <= 64);
  return {.name = name,
          .group = B::kGroup,
          .equal =
              [](const void* a, const void* b) {
                return *static_cast<const Config*>(a) == *static_cast<const Config*>(b);
              },
          .find_config_fault =
              [](const void* config) {
                return B::find_config_fault(*static_cast<const Config*>(config));
              },
          .describe =
              [](const void* config) { return B::describe(*static_cast<const Config*>(config)); },
          .add_params =
              [](const void* config, int64_t hidden_size, ParamRows& rows) {
                B::add_params(*static_cast<const Config*>(config), hidden_size, rows);
              },
          .divides = is_divided<B>,
          .divide = divided_config_of<B>,
          .cache_spec =
              [](const void* config, DType dtype) {
                return B::cache_spec(*static_cast<const Config*>(config), dtype);
              },
          .work = [](const void* config) { return B::work(*static_cast<const Config*>(config)); },
          .output_flops = B::output_flops,
          .saved_bytes = sizeof(Saved),
          .construct = [](void* saved) { new (saved) Saved; },
          .allocate_always_kept =
              [](Pass& pass, const BlockContext& context, void* saved) {
                B::allocate_always_kept(pass, context, *static_cast<Saved*>(saved));
              },
          .allocate_saved =
              [](Pass& pass, const BlockContext& context, void* saved) {
                B::allocate_saved(pass, context, *static_cast<Saved*>(saved));
              },
          .forward =
              [](Pass& pass, const BlockContext& context, void* saved, TensorView n,
                 BlockOutput output) {
                B::forward(pass, context, *static_cast<Saved*>(saved), n, output);
              },
          .backward =
              [](Pass& pass, const BlockContext& context, const void* saved, TensorView n,
                 TensorView d_out, TensorView d_n) {
                B::backward(pass, context, *static_cast<const Saved*>(saved), n, d_out, d_n);
              },
          .replay = replay_of<B>(),
          .exchanges_rows = exchanges_rows_of<B>()};
}

// A row with its config: what a layer holds. A value; equal blocks compute the same.
class Block {
 public:
  template <typename Config>
  Block(const BlockOps& ops, Config config)
      : ops_(&ops), config_(std::make_shared<const Config>(std::move(config))) {}

  [[nodiscard]] const BlockOps& ops() const { return *ops_; }
  [[nodiscard]] bool divides() const { return ops_->divides(config_.get()); }
  // What a tensor rank runs.
  [[nodiscard]] Block divided(const TensorShare& share) const {
    Block part = *this;
    if (divides()) part.config_ = ops_->divide(config_.get(), share);
    return part;
  }
  [[nodiscard]] const void* config() const { return config_.get(); }
  // The config, when the block is this one; else null.
  template <typename Config>
  [[nodiscard]] const Config* config_of(const BlockOps& ops) const {
    return ops_ == &ops ? static_cast<const Config*>(config_.get()) : nullptr;
  }
  friend bool operator==(const Block& a, const Block& b) {
    return a.ops_ == b.ops_ && (a.config_ == b.config_ || a.ops_->equal(a.config(), b.config()));
  }

 private:
  const BlockOps* ops_;
  std::shared_ptr<const void> config_;
};

}  // namespace strata::model
