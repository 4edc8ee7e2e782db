// SPDX-License-Identifier: Apache-2.0
#include "model/adapter/lora.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>

#include "base/rng.h"
#include "model/adapter/tensors.h"
#include "ops/elementwise.h"
#include "ops/pack.h"

namespace strata::model {
namespace {

// Narrow panels for small ranks, so that little of a product is padding.
int64_t rank_panel_width(int64_t rank, int64_t widest) {
  for (const int64_t width : {16, 32, 64}) {
    if (rank <= width && width <= widest) return width;
  }
  return widest;
}

int64_t next_id() {
  static std::atomic<int64_t> last = 0;
  return ++last;
}

// Sets the panels of B, which has `rows` outputs in blocks or not, and rows [own.first, own.end())
// as this rank's.
void set_b_panel(LoraModule& module, void* memory, int64_t rows, const AxisPart& own,
                 int64_t panel_width) {
  const RowBlocks& blocks = module.b_blocks;
  const int64_t panel_rows = blocks.panel_rows(own.count, panel_width);
  module.b_panel_rows = blocks.empty() ? own : AxisPart{0, panel_rows};
  module.whole_b_panel = {.data = memory,
                          .dtype = module.a_panel.dtype,
                          .rows = blocks.empty() ? rows : panel_rows,
                          .cols = module.spec.rank,
                          .width = panel_width};
  module.b_panel =
      module.whole_b_panel.slice_rows(module.b_panel_rows.first, module.b_panel_rows.end());
}

// Shapes and panels, without memory, of a module that knows its target.
void set_shapes_and_panels(LoraModule& module, DType dtype, int64_t panel_width) {
  const int64_t rank = module.spec.rank;
  const int64_t in = module.target->in;
  const int64_t out = module.target->out;
  const int64_t experts = module.num_experts;
  module.a.shape = experts > 0 ? Shape{experts, rank, in} : Shape{rank, in};
  module.b.shape = experts > 0 ? Shape{experts, out, rank} : Shape{out, rank};
  module.a_panel = {.data = nullptr,
                    .dtype = dtype,
                    .rows = rank,
                    .cols = in,
                    .width = rank_panel_width(rank, panel_width)};
  if (!module.target->parts.empty()) return;  // they have the panels of B
  module.b_blocks = module.target->blocks;
  set_b_panel(module, nullptr, out / module.num_halves, module.target->own, panel_width);
}

// A module without memory: shapes, names and panels.
LoraModule make_module(const LayerTable& layers, const LoraModuleSpec& spec, DType dtype,
                       int64_t panel_width) {
  CHECK(spec.rank >= 1, spec.rank);
  const std::span<const LoraTarget> targets = layers.targets(spec.layer);
  CHECK(spec.target >= 0 && spec.target < std::ssize(targets), spec.target, spec.layer);
  const LoraTarget& target = targets[static_cast<size_t>(spec.target)];
  LoraModule module;
  module.spec = spec;
  module.target = &target;
  module.path = module_path(layers, spec);
  module.scale = static_cast<float>(spec.scale);
  module.num_experts = target.num_experts;
  module.num_halves = target.num_halves;
  set_peft_tensor_names(module);
  set_shapes_and_panels(module, dtype, panel_width);
  return module;
}

// values[i] = of(i), drawn on the host a piece at a time.
template <typename Of>
void fill_by_index(Backend& backend, TensorView values, Of of) {
  constexpr int64_t kPiece = 1 << 16;
  std::vector<float> piece;
  const int64_t count = values.shape.num_elements();
  for (int64_t begin = 0; begin < count; begin += kPiece) {
    piece.resize(static_cast<size_t>(std::min(kPiece, count - begin)));
    for (size_t i = 0; i < piece.size(); ++i) {
      piece[i] = static_cast<float>(of(static_cast<uint64_t>(begin) + i));
    }
    ops::from_host(backend, piece, values.part(begin, {std::ssize(piece)}));
  }
}

int64_t num_values(const LoraModule& module) {
  return module.a.shape.num_elements() + module.b.shape.num_elements();
}

TensorView part_rows(TensorView b, const TargetPart& part) {
  return b.slice_rows(part.first_row, part.first_row + part.rows);
}

// Values of A's gradients that parts but the first have apart: of each the sum over sequences is
// one chain then, however these are split into passes.
int64_t a_gradients_apart(const LoraModule& module) {
  const auto parts = std::ssize(module.target->parts);
  return parts < 2 ? 0 : (parts - 1) * module.a.shape.num_elements();
}

// Bytes of A's panels of all experts. Columns of the embedding's A are gathered from the master.
int64_t a_panel_bytes(const LoraModule& module) {
  if (module.is_embedding()) return 0;
  return std::max<int64_t>(1, module.num_experts) * Arena::aligned(module.a_panel.num_bytes());
}

int64_t b_panel_bytes(const LoraModule& module, int64_t panel_width) {
  int64_t of_parts = 0;
  for (const TargetPart& part : module.target->parts)
    of_parts += Arena::aligned(
        panel_matrix_bytes(module.a_panel.dtype, part.rows, module.spec.rank, panel_width));
  if (of_parts > 0) return of_parts;
  return std::max<int64_t>(1, module.num_experts) * module.num_halves *
         Arena::aligned(module.whole_b_panel.num_bytes());
}

int64_t all_panel_bytes(const LoraModule& module, int64_t panel_width) {
  return a_panel_bytes(module) + b_panel_bytes(module, panel_width);
}

// Lists the panels of routed experts.
void append_expert_packs(const LoraModule& module, std::vector<ops::PackItem>& packs) {
  for (int64_t e = 0; e < module.num_experts; ++e) {
    packs.push_back({module.a.at(e), module.a_of(e)});
    for (int64_t half = 0; half < module.num_halves; ++half) {
      packs.push_back({module.half_of(module.b.at(e), half), module.whole_b_of(e, half)});
    }
  }
}

void append_packs(const LoraModule& module, std::vector<ops::PackItem>& packs) {
  if (module.num_experts > 0) return append_expert_packs(module, packs);
  if (!module.a_panel.empty()) packs.push_back({module.a, module.a_panel});
  if (module.num_parts > 0) return;
  if (module.b_blocks.empty()) return packs.push_back({module.b, module.whole_b_panel});
  const AxisPart& own = module.target->own;
  append_row_packs(module.b_blocks, module.b.slice_rows(own.first, own.end()), module.b_panel,
                   packs);
}

}  // namespace

std::string module_path(const LayerTable& layers, const LoraModuleSpec& spec) {
  const std::string& path = layers.targets(spec.layer)[static_cast<size_t>(spec.target)].path;
  if (spec.layer < 0) return path;
  if (spec.layer == layers.mtp_layer()) {
    return fmt::format("{}mtp.0.{}", layers.module_prefix(), path);
  }
  return fmt::format("{}layers.{}.{}", layers.module_prefix(), spec.layer, path);
}

LoraAdapter::LoraAdapter(Backend& backend, const ModelWeights& weights,
                         const std::vector<LoraModuleSpec>& specs, bool whole)
    : id_(next_id()), backend_(backend) {
  const std::vector<bool> held = add_modules(weights, specs, whole);
  allocate_modules(held);
  if (weights.layers().mtp_layer()) copy_modules_for_mtp();
  build_pack_list();
}

std::vector<bool> LoraAdapter::add_modules(const ModelWeights& weights,
                                           const std::vector<LoraModuleSpec>& specs, bool whole) {
  const LayerTable& layers = weights.layers();
  for (int64_t layer = -1; layer < layers.num_layers(); ++layer) {
    places_.emplace_back(layers.targets(layer).size());
  }
  std::vector<bool> held;
  for (const LoraModuleSpec& spec : specs) {
    LoraModule module =
        make_module(layers, spec, weights.compute_dtype(), ops::panel_width(backend_));
    held.push_back(whole || weights.holds(spec.layer, spec.target));
    module.is_copy = !whole && module.is_embedding() && !weights.begins();
    module.a_offset = num_parameters_;
    module.b_offset = num_parameters_ + module.a.shape.num_elements();
    if (held.back()) num_parameters_ += num_values(module);
    places_[static_cast<size_t>(spec.layer + 1)][static_cast<size_t>(spec.target)] = {
        .index = static_cast<int>(modules_.size())};
    add_part_modules(module, ops::panel_width(backend_));
    modules_.push_back(std::move(module));
  }
  return held;
}

// Adds what the products of a target's matrices find where it is several of them.
void LoraAdapter::add_part_modules(LoraModule& module, int64_t panel_width) {
  module.first_part = part_modules_.size();
  module.num_parts = module.target->parts.size();
  for (const TargetPart& part : module.target->parts) {
    LoraModule& own = part_modules_.emplace_back(module);
    own.spec.target = part.target;
    own.num_parts = 0;
    own.b.shape = {part.rows, module.spec.rank};
    set_b_panel(own, nullptr, part.rows, part.own, panel_width);
    places_[static_cast<size_t>(module.spec.layer + 1)][static_cast<size_t>(part.target)] = {
        .index = static_cast<int>(part_modules_.size()) - 1, .is_part = true};
  }
}

void LoraAdapter::allocate_modules(const std::vector<bool>& held) {
  const int64_t width = ops::panel_width(backend_);
  int64_t bytes = 0;
  for (size_t i = 0; i < modules_.size(); ++i)
    bytes += held[i] ? all_panel_bytes(modules_[i], width) : 0;
  flat_params_ = Memory(backend_.allocator(), num_parameters_ * dtype_bytes(DType::kF32));
  params_ = TensorView(flat_params_.data(), DType::kF32, {num_parameters_});
  panels_ = Memory(backend_.allocator(), bytes);
  char* next = static_cast<char*>(panels_.data());
  for (size_t i = 0; i < modules_.size(); ++i) {
    LoraModule& module = modules_[i];
    if (!held[i]) continue;
    module.a = params_.part(module.a_offset, module.a.shape);
    module.b = params_.part(module.b_offset, module.b.shape);
    module.a_panel.data = module.is_embedding() ? nullptr : next;
    next += a_panel_bytes(module);
    if (module.num_parts == 0) {
      set_b_panel(module, next, module.target->out / module.num_halves, module.target->own, width);
      next += b_panel_bytes(module, width);
    }
    for (size_t p = 0; p < module.num_parts; ++p) {
      LoraModule& part = parts_of(module)[p];
      part.a = module.a;
      part.b = part_rows(module.b, module.target->parts[p]);
      part.a_panel.data = module.a_panel.data;
      set_b_panel(part, next, part.b.rows(), module.target->parts[p].own, width);
      next += Arena::aligned(part.whole_b_panel.num_bytes());
    }
  }
}

void LoraAdapter::copy_modules_for_mtp() {
  for (const int target : {kEmbedding, kHead}) {
    const LoraModule* module = find_module(-1, target);
    if (module == nullptr || !module->held()) continue;
    mtp_modules_[static_cast<size_t>(target)] = *module;
  }
}

int64_t LoraAdapter::num_bytes() const {
  const int64_t gradients =
      owns_gradients_ ? gradients_->flat.size() + gradients_->apart.size() : 0;
  return flat_params_.size() + panels_.size() + moments_.size() + gradients;
}

int64_t adapter_bytes(const ModelWeights& weights, const std::vector<LoraModuleSpec>& specs,
                      int64_t panel_width, bool trains) {
  int64_t values = 0, bytes = 0;
  for (const LoraModuleSpec& spec : specs) {
    if (!weights.holds(spec.layer, spec.target)) continue;
    const LoraModule module =
        make_module(weights.layers(), spec, weights.compute_dtype(), panel_width);
    values += num_values(module);
    bytes += all_panel_bytes(module, panel_width);
  }
  const int64_t flat = values * dtype_bytes(DType::kF32);
  return bytes + flat + (trains ? 2 * Arena::aligned(flat) + gradient_bytes(weights, specs) : 0);
}

int64_t gradient_bytes(const ModelWeights& weights, const std::vector<LoraModuleSpec>& specs) {
  int64_t values = 0, used_again = 0;
  for (const LoraModuleSpec& spec : specs) {
    if (!weights.holds(spec.layer, spec.target)) continue;
    const LoraModule module =
        make_module(weights.layers(), spec, weights.compute_dtype(), /*panel_width=*/1);
    const int64_t count = num_values(module);
    values += count;
    if (spec.layer < 0 && weights.layers().mtp_layer()) used_again += count;
    used_again += a_gradients_apart(module);
  }
  return Arena::aligned(values * dtype_bytes(DType::kF32)) + used_again * dtype_bytes(DType::kF32);
}

int64_t own_expert_gradient_bytes(const ModelWeights& weights,
                                  const std::vector<LoraModuleSpec>& specs) {
  int64_t values = 0;
  for (const LoraModuleSpec& spec : specs) {
    if (!weights.holds(spec.layer, spec.target)) continue;
    const LoraModule module =
        make_module(weights.layers(), spec, weights.compute_dtype(), /*panel_width=*/1);
    if (module.num_experts == 0) continue;
    values +=
        num_values(module) / module.num_experts * weights.own_experts(module.num_experts).count;
  }
  return values * dtype_bytes(DType::kF32);
}

void LoraAdapter::initialise(uint64_t seed) {
  for (LoraModule& module : modules_) {
    if (!module.held()) continue;
    const Counter random{.seed = seed, .stream = hash_name(module.path.data(), module.path.size())};
    const double bound = 1.0 / std::sqrt(static_cast<double>(module.a.cols()));
    const auto uniform = [&](uint64_t i) { return (2.0 * random.uniform(i) - 1.0) * bound; };
    const auto normal = [&](uint64_t i) { return random.normal(i); };
    if (module.is_embedding()) {
      ops::fill_zero(backend_, module.a);
      fill_by_index(backend_, module.b, normal);
    } else {
      fill_by_index(backend_, module.a, uniform);
      ops::fill_zero(backend_, module.b);
    }
  }
}

void LoraAdapter::refresh(Backend& backend) { ops::pack_list(backend, packs_); }

// Masters and panels stay where they are, so that the list stays true.
void LoraAdapter::build_pack_list() {
  for (const LoraModule& module : modules_) {
    if (module.held()) {
      append_packs(module, packs_);
      for (size_t p = 0; p < module.num_parts; ++p) {
        const LoraModule& part = parts_of(module)[p];
        packs_.push_back({part.b, part.whole_b_panel});
      }
    }
    pack_ends_.push_back(packs_.size());
  }
}

void LoraAdapter::enable_training(const LoraAdapter* turns_with) {
  if (trains_) return;
  allocate_moments();
  bind_gradients(turns_with);
  allocate_gradients_apart();
  trains_ = true;  // all memory is there
  list_held_parts();
}

void LoraAdapter::allocate_moments() {
  const int64_t bytes = Arena::aligned(num_parameters_ * dtype_bytes(DType::kF32));
  moments_ = Memory(backend_.allocator(), 2 * bytes);
  char* base = static_cast<char*>(moments_.data());
  m_ = TensorView(base, DType::kF32, {num_parameters_});
  v_ = TensorView(base + bytes, DType::kF32, {num_parameters_});
}

// Its own, or those of an adapter that it takes turns with.
void LoraAdapter::bind_gradients(const LoraAdapter* turns_with) {
  owns_gradients_ = turns_with == nullptr;
  if (owns_gradients_) {
    gradients_ = std::make_shared<GradientMemory>();
    gradients_->flat =
        Memory(backend_.allocator(), Arena::aligned(num_parameters_ * dtype_bytes(DType::kF32)));
  } else {
    CHECK(turns_with->num_parameters_ == num_parameters_ && !turns_with->has_gradient,
          num_parameters_);
    gradients_ = turns_with->gradients_;
  }
  grads_ = TensorView(gradients_->flat.data(), DType::kF32, {num_parameters_});
  for (LoraModule& module : modules_) {
    if (!module.held()) continue;
    module.d_a = grads_.part(module.a_offset, module.a.shape);
    module.d_b = grads_.part(module.b_offset, module.b.shape);
    for (size_t p = 0; p < module.num_parts; ++p) {
      LoraModule& part = parts_of(module)[p];
      part.d_a = module.d_a;  // of the first; the others' are apart
      part.d_b = part_rows(module.d_b, module.target->parts[p]);
    }
  }
}

void LoraAdapter::list_held_parts() {
  size_t first = 0;
  for (size_t i = 0; i < modules_.size(); ++i) {
    const int64_t offset = modules_[i].a_offset;  // B follows A
    const Shape shape = {num_values(modules_[i])};
    if (!modules_[i].held()) continue;
    step_items_.push_back({.g = grads_.part(offset, shape),
                           .p = params_.part(offset, shape),
                           .m = m_.part(offset, shape),
                           .v = v_.part(offset, shape),
                           .packs = std::span(packs_).subspan(first, pack_ends_[i] - first)});
    gradient_parts_.push_back(modules_[i].d_a);
    gradient_parts_.push_back(modules_[i].d_b);
    first = pack_ends_[i];
  }
}

void LoraAdapter::allocate_gradients_apart() {
  int64_t count = 0;
  for (const std::optional<LoraModule>& module : mtp_modules_)
    count += module ? num_values(*module) : 0;
  for (const LoraModule& module : modules_) count += module.held() ? a_gradients_apart(module) : 0;
  if (count == 0) return;
  if (owns_gradients_) {
    gradients_->apart = Memory(backend_.allocator(), count * dtype_bytes(DType::kF32));
  }
  grads_apart_ = TensorView(gradients_->apart.data(), DType::kF32, {count});
  int64_t offset = 0;
  for (std::optional<LoraModule>& module : mtp_modules_) {
    if (!module) continue;
    module->d_a = grads_apart_.part(offset, module->a.shape);
    module->d_b = grads_apart_.part(offset + module->a.shape.num_elements(), module->b.shape);
    offset += num_values(*module);
  }
  for (const LoraModule& module : modules_) {
    if (!module.held()) continue;
    for (size_t p = 1; p < module.num_parts; ++p) {
      parts_of(module)[p].d_a = grads_apart_.part(offset, module.a.shape);
      offset += module.a.shape.num_elements();
    }
  }
}

void LoraAdapter::merge_gradients_apart(Backend& backend) {
  if (grads_apart_.empty()) return;
  for (const LoraModule& module : modules_) {
    if (!module.held()) continue;
    for (size_t p = 1; p < module.num_parts; ++p)
      ops::add_into(backend, parts_of(module)[p].d_a, module.d_a);
  }
  for (const int target : {kEmbedding, kHead}) {
    const std::optional<LoraModule>& again = mtp_modules_[static_cast<size_t>(target)];
    if (!again) continue;
    ops::add_into(backend, again->d_a, find_module(-1, target)->d_a);
    ops::add_into(backend, again->d_b, find_module(-1, target)->d_b);
  }
  ops::fill_zero(backend, grads_apart_);
}

void LoraAdapter::drop_gradients() {
  has_gradient = false;
  if (trains_) ops::fill_zero(backend_, grads_);
  if (!grads_apart_.empty()) ops::fill_zero(backend_, grads_apart_);
}

}  // namespace strata::model
