// SPDX-License-Identifier: Apache-2.0
// LoRA adapters: a set of modules, each y += scale * (x A^T) B^T with its own rank and scale. A [r,
// in] and B [out, r] are fp32 masters in one flat block, with gradients and AdamW moments of the
// same layout once the adapter trains; products read panel copies in the compute type, refreshed
// from the masters (refresh()). An adapter owns all of its memory, so nothing of one adapter can
// move another, and its cost is its own size. On the weights of a stage it lists all modules, and
// those of other stages have no memory; where the last stage reads the embedding too, for
// multi-token prediction, it has the embedding's module as well. Engine thread only. Source of
// forms and initialisation: PEFT tuners/lora/layer.py.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/arena.h"
#include "backend/backend.h"
#include "model/weights/weights.h"
#include "ops/adamw.h"

namespace strata::model {

// How modules of routed experts are stored in a file (checkpoint/peft.h says the layouts).
enum class ExpertForm : uint8_t {
  kPerExpert,  // PEFT before transformers 5: one A and B for each expert; names hold "{}"
  kFused,      // PEFT's target_parameters
  kStacked,    // Tinker's [E, ...] tensors
};

// What to adapt and how: one entry for each module.
struct LoraModuleSpec {
  int layer = -1;  // -1 outside the layers
  int target = 0;  // among the layer's targets (LayerTable::targets)
  int64_t rank = 0;
  double alpha = 0.0;
  double scale = 0.0;  // alpha / rank, or alpha / sqrt(rank) with rslora
};

struct LoraModule {
  LoraModuleSpec spec;
  const LoraTarget* target = nullptr;
  std::string path;            // "model.layers.3.mlp.up_proj"
  std::string a_name, b_name;  // keys in the adapter's file; PEFT's own for a fresh adapter
  TensorView a, b;             // masters: A [r, in], B [out, r] f32
  TensorView d_a, d_b;         // gradients, or empty
  // Compute copies; a_panel of the embedding is empty: its columns are gathered; b_panel has the
  // rows of whole_b_panel that are the outputs of this rank's weight: all, or a tensor rank's.
  PanelView a_panel, b_panel, whole_b_panel;
  AxisPart b_panel_rows;  // b_panel's in whole_b_panel
  RowBlocks b_blocks;     // of these rows, as the weight's own; then whole_b_panel has just them
  // Routed experts: A [E, r, in], B [E, out, r], and a panel for each expert, one behind the other;
  // a_panel and b_panel are the first. B of gate and up together has two panels an expert.
  int64_t num_experts = 0;  // 0: not of experts
  ExpertForm form = ExpertForm::kPerExpert;
  int64_t num_halves = 1;
  float scale = 0.0f;
  int64_t a_offset = 0, b_offset = 0;  // elements, in the flat blocks
  bool is_copy = false;                // of one that the first stage holds
  // Modules of the target's parts, in LoraAdapter::part_modules_: views of this one's A and of rows
  // of its B, with a panel of their own. This one then has no panel of B.
  size_t first_part = 0, num_parts = 0;

  [[nodiscard]] bool held() const { return !a.empty(); }  // false: another stage's
  [[nodiscard]] bool is_embedding() const { return spec.layer < 0 && spec.target == kEmbedding; }
  [[nodiscard]] bool is_before_layers() const { return spec.layer < 0 && spec.target != kHead; }
  [[nodiscard]] PanelView a_of(int64_t expert) const { return expert_panel(a_panel, expert); }
  [[nodiscard]] PanelView whole_b_of(int64_t expert, int64_t half) const {
    return expert_panel(whole_b_panel, expert * num_halves + half);
  }
  [[nodiscard]] PanelView b_of(int64_t expert, int64_t half) const {
    return whole_b_of(expert, half).slice_rows(b_panel_rows.first, b_panel_rows.end());
  }
  [[nodiscard]] TensorView d_a_of(int64_t expert) const { return d_a.at(expert); }
  [[nodiscard]] TensorView d_b_of(int64_t expert, int64_t half) const {
    return half_of(d_b.at(expert), half);
  }
  [[nodiscard]] TensorView half_of(TensorView b_of_expert, int64_t half) const {
    return b_of_expert.slice_rows(half * whole_b_panel.rows, (half + 1) * whole_b_panel.rows);
  }
};

class LoraAdapter {
 public:
  // Zeroed weights. Specs must be valid for the model: the caller has checked ranks and kinds. With
  // `whole` it has memory for all modules, whatever part of the model the weights are.
  LoraAdapter(Backend& backend, const ModelWeights& weights,
              const std::vector<LoraModuleSpec>& specs, bool whole = false);
  [[nodiscard]] Backend& backend() const { return backend_; }  // where its tensors live

  // PEFT's initialisation: linear A uniform in +-1/sqrt(in), B zero; embedding A zero, B standard
  // normal. Drawn from the counter generator by (seed, module path, element): neither slot nor
  // capacity nor the other modules matter.
  void initialise(uint64_t seed);
  // Copies the masters to the panels that products read. Call after any change of a master.
  void refresh(Backend& backend);
  // Allocates zeroed gradients and moments, once. With `turns_with`, an adapter of the same modules
  // that trains, both use its gradients: for adapters of which one at a time has any.
  void enable_training(const LoraAdapter* turns_with = nullptr);
  // Adds what was accumulated apart: by the second use of embedding and head (kMtpEmbedding,
  // kMtpHead), and for A by the parts of a target behind the first. Gradients are then complete.
  // Idempotent.
  void merge_gradients_apart(Backend& backend);
  // Forgets what was accumulated since the last step.
  void drop_gradients();
  [[nodiscard]] bool trains() const { return trains_; }
  // Told apart from every other adapter of this process, also of one that is gone.
  [[nodiscard]] int64_t id() const { return id_; }

  [[nodiscard]] std::vector<LoraModule>& modules() { return modules_; }
  [[nodiscard]] const std::vector<LoraModule>& modules() const { return modules_; }
  // Null when the adapter has no such module; layer -1 for the targets outside the layers, and a
  // target of -1 is none, as is one that the model has not.
  [[nodiscard]] const LoraModule* find_module(int64_t layer, int target) const {
    if (target < 0) return nullptr;
    if (layer < 0 && target >= kMtpEmbedding) {
      const std::optional<LoraModule>& again =
          mtp_modules_[static_cast<size_t>(target - kMtpEmbedding)];
      return again ? &*again : nullptr;
    }
    const std::vector<ModulePlace>& places = places_[static_cast<size_t>(layer + 1)];
    if (target >= std::ssize(places)) return nullptr;
    const ModulePlace place = places[static_cast<size_t>(target)];
    if (place.index < 0) return nullptr;
    const auto index = static_cast<size_t>(place.index);
    return place.is_part ? &part_modules_[index] : &modules_[index];
  }
  // Whether it changes what is made before the layers.
  [[nodiscard]] bool has_modules_before_layers() const {
    return std::any_of(modules_.begin(), modules_.end(),
                       [](const LoraModule& module) { return module.is_before_layers(); });
  }
  [[nodiscard]] int64_t num_parameters() const { return num_parameters_; }  // that it holds
  [[nodiscard]] int64_t num_bytes() const;  // masters, panels and, once it trains, what that takes

  // Flat [n] f32 blocks over all modules; gradients and moments are empty until enable_training().
  [[nodiscard]] TensorView parameters() const { return params_; }
  [[nodiscard]] TensorView gradients() const { return grads_; }
  [[nodiscard]] TensorView first_moments() const { return m_; }
  [[nodiscard]] TensorView second_moments() const { return v_; }

  // What an optimizer step works on, empty until enable_training(): a module each, in their order;
  // and the gradients of each module's A and then its B.
  [[nodiscard]] std::span<const ops::AdamWItem> step_items() const { return step_items_; }
  [[nodiscard]] std::span<const TensorView> gradient_parts() const { return gradient_parts_; }

  int64_t step = 0;           // optimizer steps done
  bool has_gradient = false;  // something was accumulated since the last step

 private:
  // Where the module of a target is: in modules_ or part_modules_, or nowhere.
  struct ModulePlace {
    int index = -1;
    bool is_part = false;
  };

  // Lists the modules, without memory; returns of each whether it is to have any.
  std::vector<bool> add_modules(const ModelWeights& weights,
                                const std::vector<LoraModuleSpec>& specs, bool whole);
  void allocate_modules(const std::vector<bool>& held);
  void add_part_modules(LoraModule& module, int64_t panel_width);
  [[nodiscard]] std::span<LoraModule> parts_of(const LoraModule& module) {
    return std::span(part_modules_).subspan(module.first_part, module.num_parts);
  }
  void copy_modules_for_mtp();
  void build_pack_list();
  void allocate_moments();
  void bind_gradients(const LoraAdapter* turns_with);
  void allocate_gradients_apart();
  // Lists the optimizer item and the gradients of each module that is held.
  void list_held_parts();
  struct GradientMemory {
    Memory flat, apart;
  };

  std::vector<LoraModule> modules_;
  std::vector<ops::PackItem> packs_;  // of all modules
  std::vector<size_t> pack_ends_;     // of each module
  std::vector<ops::AdamWItem> step_items_;
  std::vector<TensorView> gradient_parts_;
  std::vector<LoraModule> part_modules_;
  std::vector<std::vector<ModulePlace>> places_;  // [layer + 1][target]
  // Those of embedding and head again, where multi-token prediction takes part, with gradients in
  // a block of their own.
  std::array<std::optional<LoraModule>, 2> mtp_modules_;
  int64_t num_parameters_ = 0;
  bool trains_ = false;
  int64_t id_ = 0;
  Backend& backend_;
  Memory panels_;
  Memory flat_params_, moments_;
  std::shared_ptr<GradientMemory> gradients_;
  bool owns_gradients_ = false;  // false: they are counted with another adapter
  TensorView params_, grads_, grads_apart_, m_, v_;
};

// What an adapter of these modules takes, of those that the weights' stage holds:
// LoraAdapter::num_bytes() before there is one.
int64_t adapter_bytes(const ModelWeights& weights, const std::vector<LoraModuleSpec>& specs,
                      int64_t panel_width, bool trains);
// The part of these bytes that adapters which take turns have once.
int64_t gradient_bytes(const ModelWeights& weights, const std::vector<LoraModuleSpec>& specs);
// How many of these bytes are of the experts that the weights' rank has.
int64_t own_expert_gradient_bytes(const ModelWeights& weights,
                                  const std::vector<LoraModuleSpec>& specs);

// "model.layers.3.mlp.up_proj"; of routed experts "model.layers.3.mlp.experts.up_proj"; of the
// layer of multi-token prediction "model.mtp.0.e_proj".
std::string module_path(const LayerTable& layers, const LoraModuleSpec& spec);

}  // namespace strata::model
