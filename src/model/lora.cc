#include "model/lora.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "base/rng.h"
#include "model/adapter_tensors.h"
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

// A module without memory: shapes, names and panels.
LoraModule make_module(const LayerTable& layers, const LoraModuleSpec& spec, DType dtype,
                       int64_t panel_width) {
  CHECK(spec.rank >= 1, spec.rank);
  const std::span<const LoraTarget> targets = layers.targets(spec.layer);
  CHECK(spec.target >= 0 && spec.target < std::ssize(targets), spec.target, spec.layer);
  const LoraTarget& target = targets[static_cast<size_t>(spec.target)];
  const int64_t in = target.in;
  const int64_t out = target.out;
  LoraModule module;
  module.spec = spec;
  module.target = &target;
  module.path = module_path(layers, spec);
  module.scale = static_cast<float>(spec.scale);
  module.num_experts = target.num_experts;
  module.num_halves = target.num_halves;
  set_tensor_names(module);
  const int64_t experts = module.num_experts;
  module.a.shape = experts > 0 ? Shape{experts, spec.rank, in} : Shape{spec.rank, in};
  module.b.shape = experts > 0 ? Shape{experts, out, spec.rank} : Shape{out, spec.rank};
  module.a_panel = {.data = nullptr,
                    .dtype = dtype,
                    .rows = spec.rank,
                    .cols = in,
                    .width = rank_panel_width(spec.rank, panel_width)};
  module.b_blocks = target.blocks;
  module.b_panel = {.data = nullptr,
                    .dtype = dtype,
                    .rows = module.b_blocks.panel_rows(out / module.num_halves, panel_width),
                    .cols = spec.rank,
                    .width = panel_width};
  return module;
}

int64_t num_values(const LoraModule& module) {
  return module.a.shape.num_elements() + module.b.shape.num_elements();
}

// Of all experts. Columns of the embedding's A are gathered from the master.
int64_t a_panel_bytes(const LoraModule& module) {
  if (module.is_embedding()) return 0;
  return std::max<int64_t>(1, module.num_experts) * Arena::aligned(module.a_panel.num_bytes());
}

int64_t all_panel_bytes(const LoraModule& module) {
  return a_panel_bytes(module) + std::max<int64_t>(1, module.num_experts) * module.num_halves *
                                     Arena::aligned(module.b_panel.num_bytes());
}

}  // namespace

std::string module_path(const LayerTable& layers, const LoraModuleSpec& spec) {
  const std::string& path = layers.targets(spec.layer)[static_cast<size_t>(spec.target)].path;
  return spec.layer < 0 ? path
                        : fmt::format("{}layers.{}.{}", layers.module_prefix(), spec.layer, path);
}

LoraAdapter::LoraAdapter(const Backend& backend, const ModelWeights& weights,
                         const std::vector<LoraModuleSpec>& specs)
    : id_(next_id()), allocator_(backend.allocator()) {
  const LayerTable& layers = weights.layers();
  for (int64_t layer = -1; layer < layers.num_layers(); ++layer) {
    places_.emplace_back(layers.targets(layer).size(), -1);
  }
  int64_t bytes = 0;
  for (const LoraModuleSpec& spec : specs) {
    LoraModule module =
        make_module(layers, spec, weights.compute_dtype(), backend.panel_width());
    module.a_offset = num_parameters_;
    module.b_offset = num_parameters_ + module.a.shape.num_elements();
    num_parameters_ += num_values(module);
    bytes += all_panel_bytes(module);
    int64_t& most = module.num_experts > 0 ? max_expert_rank_ : max_rank_;
    most = std::max(most, spec.rank);
    places_[static_cast<size_t>(spec.layer + 1)][static_cast<size_t>(spec.target)] =
        static_cast<int>(modules_.size());
    modules_.push_back(std::move(module));
  }
  flat_params_ = Memory(allocator_, num_parameters_ * dtype_bytes(DType::kF32));
  params_ = TensorView(flat_params_.data(), DType::kF32, {num_parameters_});
  panels_ = Memory(allocator_, bytes);
  char* next = static_cast<char*>(panels_.data());
  for (LoraModule& module : modules_) {
    module.a = params_.part(module.a_offset, module.a.shape);
    module.b = params_.part(module.b_offset, module.b.shape);
    module.a_panel.data = module.is_embedding() ? nullptr : next;
    module.b_panel.data = next + a_panel_bytes(module);
    next += all_panel_bytes(module);
  }
}

int64_t LoraAdapter::num_bytes() const {
  return flat_params_.size() + panels_.size() + flat_train_.size();
}

int64_t adapter_bytes(const ModelWeights& weights, const std::vector<LoraModuleSpec>& specs,
                      int64_t panel_width, bool trains) {
  int64_t values = 0;
  int64_t bytes = 0;
  for (const LoraModuleSpec& spec : specs) {
    const LoraModule module =
        make_module(weights.layers(), spec, weights.compute_dtype(), panel_width);
    values += num_values(module);
    bytes += all_panel_bytes(module);
  }
  const int64_t flat = values * dtype_bytes(DType::kF32);
  return bytes + flat + (trains ? 3 * Arena::aligned(flat) : 0);
}

void LoraAdapter::initialise(uint64_t seed) {
  for (LoraModule& module : modules_) {
    const Counter random{.seed = seed, .stream = hash_name(module.path.data(), module.path.size())};
    const bool embedding = module.is_embedding();
    const double bound = 1.0 / std::sqrt(static_cast<double>(module.a.cols()));
    float* a = module.a.f32();
    float* b = module.b.f32();
    for (int64_t i = 0; i < module.a.shape.num_elements(); ++i) {
      const double u =
          embedding ? 0.0 : (2.0 * random.uniform(static_cast<uint64_t>(i)) - 1.0) * bound;
      a[i] = static_cast<float>(u);
    }
    for (int64_t i = 0; i < module.b.shape.num_elements(); ++i) {
      b[i] = embedding ? static_cast<float>(random.normal(static_cast<uint64_t>(i))) : 0.0f;
    }
  }
}

void LoraAdapter::refresh(Backend& backend) {
  backend.run_in_lanes(std::ssize(modules_), [&](int64_t i, Backend& lane) {
    refresh_module(lane, static_cast<size_t>(i));
  });
}

void LoraAdapter::refresh_module(Backend& backend, size_t index) {
  LoraModule& module = modules_[index];
  for (int64_t e = 0; e < module.num_experts; ++e) {
    ops::pack(backend, module.a.at(e), 0, module.a_of(e));
    for (int64_t half = 0; half < module.num_halves; ++half) {
      ops::pack(backend, module.half_of(module.b.at(e), half), 0, module.b_of(e, half));
    }
  }
  if (module.num_experts > 0) return;
  if (!module.a_panel.empty()) ops::pack(backend, module.a, 0, module.a_panel);
  pack_rows(backend, module.b_blocks, module.b, 0, module.b_panel);
}

void LoraAdapter::enable_training() {
  if (trains_) return;
  trains_ = true;
  const int64_t bytes = Arena::aligned(num_parameters_ * dtype_bytes(DType::kF32));
  flat_train_ = Memory(allocator_, 3 * bytes);
  char* base = static_cast<char*>(flat_train_.data());
  grads_ = TensorView(base, DType::kF32, {num_parameters_});
  m_ = TensorView(base + bytes, DType::kF32, {num_parameters_});
  v_ = TensorView(base + 2 * bytes, DType::kF32, {num_parameters_});
  for (LoraModule& module : modules_) {
    module.d_a = grads_.part(module.a_offset, module.a.shape);
    module.d_b = grads_.part(module.b_offset, module.b.shape);
  }
}

void LoraAdapter::drop_gradients() {
  has_gradient = false;
  if (trains_) std::memset(grads_.data, 0, static_cast<size_t>(grads_.num_bytes()));
}

}  // namespace strata::model
