// SPDX-License-Identifier: Apache-2.0
#include "model/adapter/fused.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>

#include "base/check.h"
#include "base/error.h"
#include "model/adapter/io.h"
#include "model/adapter/tensors.h"
#include "model/families/family.h"

namespace strata::model {
namespace {

constexpr const char* kMetadata = "strata_gate_up_proj";
constexpr std::string_view kGate = "gate_proj";
constexpr std::string_view kUp = "up_proj";
constexpr std::string_view kGateUp = "gate_up_proj";
constexpr std::string_view kDown = "down_proj";

// The experts of a layer: null for a projection that is not adapted.
struct LayerExperts {
  std::string path;  // "model.layers.3.mlp.experts"
  const LoraModule* gate = nullptr;
  const LoraModule* up = nullptr;
  const LoraModule* gate_up = nullptr;  // both in one, as a file of PEFT's own has them
  const LoraModule* down = nullptr;

  void set_module(const LoraModule& module) {
    const std::string_view name = module.target->name();
    const LoraModule** place = name == kGate     ? &gate
                               : name == kUp     ? &up
                               : name == kGateUp ? &gate_up
                                                 : &down;
    CHECK((place != &down || name == kDown) && *place == nullptr, module.path);
    *place = &module;
  }
  [[nodiscard]] std::vector<const LoraModule*> gate_up_modules() const {
    std::vector<const LoraModule*> out;
    if (gate != nullptr) out.push_back(gate);
    if (up != nullptr) out.push_back(up);
    return out;
  }
};

std::vector<LayerExperts> experts_by_layer(const LoraAdapter& adapter) {
  std::vector<LayerExperts> layers;
  for (const LoraModule& module : adapter.modules()) {
    if (module.num_experts == 0) continue;
    const std::string path = module.path.substr(0, module.path.rfind('.'));
    const auto same = [&](const LayerExperts& layer) { return layer.path == path; };
    auto found = std::find_if(layers.begin(), layers.end(), same);
    if (found == layers.end()) found = layers.insert(found, {.path = path});
    found->set_module(module);
  }
  return layers;
}

// What find_peft_export_fault() compares of a layer's experts.
using ExpertSpecs = std::map<std::string_view, const LoraModuleSpec*>;  // by projection

// What gate_up_proj of the file is made of: "gate_proj up_proj", one of the two, "gate_up_proj", or
// nothing where neither is adapted.
std::string gate_up_names(const ExpertSpecs& experts) {
  std::vector<std::string_view> names;
  for (const std::string_view name : {kGate, kUp, kGateUp}) {
    if (experts.contains(name)) names.push_back(name);
  }
  return fmt::format("{}", fmt::join(names, " "));
}

std::string find_gate_up_pair_fault(int layer, const ExpertSpecs& experts) {
  const auto gate = experts.find(kGate), up = experts.find(kUp);
  if (gate == experts.end() || up == experts.end()) return {};
  const LoraModuleSpec &one = *gate->second, &other = *up->second;
  if (one.rank == other.rank && one.alpha == other.alpha) return {};
  return fmt::format(
      "layer {}: gate_proj of the experts has rank {} and alpha {}, up_proj {} and {}; PEFT's form "
      "has both in one tensor of one scaling, so what is trained could not be written",
      layer, one.rank, one.alpha, other.rank, other.alpha);
}

std::map<int, ExpertSpecs> expert_specs_by_layer(const LayerTable& layers,
                                                 std::span<const LoraModuleSpec> specs) {
  std::map<int, ExpertSpecs> out;
  for (const LoraModuleSpec& spec : specs) {
    const LoraTarget& target = layers.targets(spec.layer)[static_cast<size_t>(spec.target)];
    if (target.num_experts > 0) out[spec.layer][target.name()] = &spec;
  }
  return out;
}

// What gate and up are apart, as the file's metadata says it; nothing where the file is to be read
// as the whole tensors that it holds.
std::optional<std::string> gate_up_metadata(const std::vector<LayerExperts>& layers) {
  if (layers.empty()) return std::nullopt;
  std::string names;
  for (const LayerExperts& layer : layers) {
    if (layer.gate_up != nullptr) return std::nullopt;
    if (!names.empty()) continue;
    for (const LoraModule* half : layer.gate_up_modules())
      names += (names.empty() ? "" : " ") + std::string(half->target->name());
  }
  return names;
}

// The row of the file's B that output `out` of a module is.
int64_t row_in_file(const LoraModule& module, const FusedPart& part, int64_t out) {
  if (part.num_halves == 1) return fused_row(*module.target, out);
  return module.target->alternating ? part.num_halves * out + part.half
                                    : part.half * module.b.shape[1] + out;
}

// Where a part's values are in the file's tensors: A [E R, in], of each expert the ranks of each
// half in turn, and B [outs, E R], whose column j E + e is rank j of expert e. Where they change
// places the file has [in, E R] and [E R, outs].
struct PlacesInFile {
  const LoraModule& module;
  const FusedPart& part;
  int64_t file_rank;

  [[nodiscard]] int64_t row(int64_t expert, int64_t rank) const {
    return expert * file_rank + part.first_rank + rank;
  }
  [[nodiscard]] int64_t column(int64_t expert, int64_t rank) const {
    return (part.first_rank + rank) * module.num_experts + expert;
  }
  // Calls body(place in the file's, place in the module's) for every value of A.
  template <typename Body>
  void for_each_of_a(Body body) const {
    const int64_t rank = module.spec.rank, in = module.a.shape[2];
    const int64_t columns = module.num_experts * file_rank;
    for (int64_t e = 0; e < module.num_experts; ++e) {
      for (int64_t j = 0; j < rank; ++j) {
        for (int64_t k = 0; k < in; ++k) {
          body(module.target->swapped ? k * columns + column(e, j) : row(e, j) * in + k,
               (e * rank + j) * in + k);
        }
      }
    }
  }
  // The same of B.
  template <typename Body>
  void for_each_of_b(Body body) const {
    const int64_t rank = module.spec.rank, outs = module.b.shape[1];
    const int64_t columns = module.num_experts * file_rank;
    for (int64_t e = 0; e < module.num_experts; ++e) {
      for (int64_t o = 0; o < outs; ++o) {
        const int64_t at = row_in_file(module, part, o);
        for (int64_t j = 0; j < rank; ++j) {
          body(module.target->swapped ? row(e, j) * part.num_halves * outs + at
                                      : at * columns + column(e, j),
               (e * outs + o) * rank + j);
        }
      }
    }
  }
};

// Modules as one of the file; A and B of one that is a whole tensor already are as they stand.
PeftWriteModule make_fused_module(const std::string& path, bool is_inner, bool use_rslora,
                                  const std::vector<const LoraModule*>& parts,
                                  std::vector<FusedPart> places, int64_t num_outs) {
  const LoraModule& first = *parts[0];
  const auto count = static_cast<int64_t>(parts.size());
  const int64_t rank = count * first.spec.rank;
  const int64_t columns = first.num_experts * rank;
  const bool swapped = first.target->swapped;
  const int64_t in = first.a.shape[2], outs = num_outs * first.b.shape[1];
  const Shape a = {columns, swapped ? outs : in};
  const Shape b = {swapped ? in : outs, columns};
  const std::string experts = path.substr(0, path.rfind('.'));
  const auto fill = [parts, places = std::move(places), rank, swapped](const Shape& shape,
                                                                       bool is_b, float* out) {
    std::fill_n(out, shape.num_elements(), 0.0f);
    for (size_t i = 0; i < parts.size(); ++i) {
      const PlacesInFile values = {*parts[i], places[i], rank};
      const float* own = is_b != swapped ? parts[i]->b.f32() : parts[i]->a.f32();
      const auto copy = [&](int64_t to, int64_t from) { out[to] = own[from]; };
      if (is_b != swapped) {
        values.for_each_of_b(copy);
      } else {
        values.for_each_of_a(copy);
      }
    }
  };
  return {.module_path = path,
          .alpha = first.spec.alpha * fused_alpha_factor(count, use_rslora),
          .a = TensorView(nullptr, DType::kF32, a),
          .b = TensorView(nullptr, DType::kF32, b),
          .rank = rank,
          .key = is_inner ? experts + ".base_layer" : experts,
          .parameter = path,
          .fill = [fill, a, b](bool is_b, float* out) { fill(is_b ? b : a, is_b, out); }};
}

// Where gate_up_proj has what gate and up are apart: ranks one behind the other.
std::vector<FusedPart> gate_up_places(const LayerExperts& layer) {
  std::vector<FusedPart> places;
  for (const LoraModule* half : layer.gate_up_modules()) {
    places.push_back({.first_rank = std::ssize(places) * half->spec.rank,
                      .half = half == layer.up ? 1 : 0,
                      .num_halves = 2});
  }
  return places;
}

void add_fused_modules(const LayerExperts& layer, bool use_rslora,
                       std::vector<PeftWriteModule>& modules) {
  const std::string gate_up = layer.path + ".gate_up_proj";
  const bool is_inner = layer.down != nullptr;
  const std::vector<const LoraModule*> halves = layer.gate_up_modules();
  if (!halves.empty()) {
    modules.push_back(
        make_fused_module(gate_up, is_inner, use_rslora, halves, gate_up_places(layer), 2));
  }
  if (layer.gate_up != nullptr)
    modules.push_back(make_fused_module(gate_up, is_inner, use_rslora, {layer.gate_up}, {{}}, 1));
  if (layer.down != nullptr) {
    modules.push_back(
        make_fused_module(layer.path + ".down_proj", false, use_rslora, {layer.down}, {{}}, 1));
  }
}

// Whether PEFT takes the names of dense projections for those of experts.
bool may_have_experts(const ModelConfig& config) {
  const Family* family = find_family(config.architecture);
  return family != nullptr && takes_any_value(*family, "num_experts_per_tok");
}

// Whether PEFT must adapt the module's weight, and not the module.
bool is_target_parameter(const LoraModule& module, bool has_experts) {
  const RowBlocks& blocks = module.target->blocks;
  if (!blocks.empty() && blocks.second == 0) return true;  // a grouped linear layer
  const std::string_view name = module.target->name();
  return has_experts && (name == kGate || name == kUp || name == kDown);
}

// A module that is not of experts.
PeftWriteModule make_unfused_module(const LoraModule& module, bool has_experts) {
  PeftWriteModule out = {.module_path = module.path,
                         .embedding = module.is_embedding(),
                         .alpha = module.spec.alpha,
                         .a = {},
                         .b = {},
                         .rank = module.spec.rank};
  set_stored_values(module, out);
  if (is_target_parameter(module, has_experts)) out.parameter = module.path + ".weight";
  return out;
}

struct RankRange {
  int64_t begin = 0, end = 0;
};
// The ranks of a half, each half having `count`; none of a half that is not there.
RankRange ranks_of_half(const std::vector<std::string>& halves, std::string_view name,
                        int64_t count) {
  const auto half = std::find(halves.begin(), halves.end(), name);
  if (half == halves.end()) return {};
  const int64_t begin = (half - halves.begin()) * count;
  return {begin, begin + count};
}

std::vector<float> read_values(const PeftAdapter& peft, const TensorInfo& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.shape.num_elements()));
  peft.file().read_f32(tensor, 0, std::ssize(values), values.data());
  return values;
}

}  // namespace

void save_adapter_for_peft(const LoraAdapter& adapter, const ModelConfig& config,
                           const std::string& dir, const std::string& base_model_name,
                           std::map<std::string, std::string> metadata) {
  const HostAccess access(adapter.backend().allocator());
  const std::vector<LayerExperts> layers = experts_by_layer(adapter);
  const bool has_experts = may_have_experts(config);
  const bool use_rslora = uses_rslora(adapter);
  std::vector<PeftWriteModule> modules;
  for (const LoraModule& module : adapter.modules()) {
    const LoraModuleSpec& spec = module.spec;
    CHECK(spec.scale == peft_scaling(spec.alpha, spec.rank, use_rslora), module.path);
    if (module.num_experts == 0) modules.push_back(make_unfused_module(module, has_experts));
  }
  for (const LayerExperts& layer : layers) add_fused_modules(layer, use_rslora, modules);
  if (const auto names = gate_up_metadata(layers)) metadata[kMetadata] = *names;
  write_peft(dir,
             {.use_rslora = use_rslora,
              .base_model_name_or_path = base_model_name,
              .metadata = std::move(metadata)},
             modules);
}

std::string find_peft_export_fault(const LayerTable& layers,
                                   std::span<const LoraModuleSpec> specs) {
  int first_layer = 0;
  std::string first_names;
  for (const auto& [layer, experts] : expert_specs_by_layer(layers, specs)) {
    if (std::string fault = find_gate_up_pair_fault(layer, experts); !fault.empty()) return fault;
    const std::string names = gate_up_names(experts);
    if (first_names.empty()) {
      first_layer = layer;
      first_names = names;
    }
    if (names.empty() || names == first_names) continue;
    return fmt::format(
        "of the experts of layer {} it adapts {}, of those of layer {} {}; a file in PEFT's form "
        "says one for all its layers, so what is trained could not be written",
        first_layer, first_names, layer, names);
  }
  return {};
}

double fused_alpha_factor(int64_t count, bool use_rslora) {
  const auto times = static_cast<double>(count);
  return use_rslora ? std::sqrt(times) : times;
}

std::optional<std::vector<std::string>> parse_gate_up_names(const PeftAdapter& peft) {
  const auto found = peft.file().metadata().find(kMetadata);
  if (found == peft.file().metadata().end()) return std::nullopt;
  const std::string gate(kGate), up(kUp);
  for (const std::vector<std::string>& halves :
       {std::vector<std::string>{}, {gate}, {up}, {gate, up}}) {
    if (fmt::format("{}", fmt::join(halves, " ")) == found->second) return halves;
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: __metadata__ {}: got '{}', want 'gate_proj up_proj', one of the two "
                          "or nothing; was the file changed?",
                          peft.file().path(), kMetadata, found->second));
}

bool is_block_diagonal(const PeftAdapter& peft, const PeftModule& gate_up, const LoraTarget& target,
                       const std::vector<std::string>& halves) {
  const std::vector<float> b = read_values(peft, target.swapped ? gate_up.a : gate_up.b);
  const int64_t experts = target.num_experts, outs = target.out;
  const int64_t of_half = gate_up.rank / std::max<int64_t>(1, std::ssize(halves));
  for (int64_t o = 0; o < outs; ++o) {
    const bool is_gate = target.alternating ? o % 2 == 0 : o < outs / 2;
    const auto [begin, end] = ranks_of_half(halves, is_gate ? kGate : kUp, of_half);
    for (int64_t c = 0; c < experts * gate_up.rank; ++c) {
      const int64_t rank = target.swapped ? c % gate_up.rank : c / experts;
      const int64_t at = target.swapped ? c * outs + o : o * experts * gate_up.rank + c;
      if ((rank < begin || rank >= end) && b[static_cast<size_t>(at)] != 0.0f) return false;
    }
  }
  return true;
}

void read_fused_part(const PeftAdapter& peft, const PeftModule& source, const FusedPart& part,
                     LoraModule& module) {
  const bool swapped = module.target->swapped;
  const std::vector<float> a = read_values(peft, swapped ? source.b : source.a);
  const std::vector<float> b = read_values(peft, swapped ? source.a : source.b);
  const PlacesInFile values = {module, part, source.rank};
  values.for_each_of_a(
      [&](int64_t from, int64_t to) { module.a.f32()[to] = a[static_cast<size_t>(from)]; });
  values.for_each_of_b(
      [&](int64_t from, int64_t to) { module.b.f32()[to] = b[static_cast<size_t>(from)]; });
}

}  // namespace strata::model
