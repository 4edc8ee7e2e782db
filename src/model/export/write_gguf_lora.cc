// SPDX-License-Identifier: Apache-2.0
// Source: llama.cpp's convert_lora_to_gguf.py and llama-adapter.cpp.
#include "model/export/write_gguf_lora.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "base/files.h"
#include "checkpoint/gguf/names.h"
#include "checkpoint/gguf/quantise.h"
#include "model/adapter/io.h"
#include "model/export/gguf_keys.h"
#include "model/export/gguf_plan.h"
#include "model/weights/tensor_names.h"
#include "ops/elementwise.h"

namespace strata::model {
namespace {

// A [.., r, in] and B [.., out, r] of one tensor.
struct Factors {
  std::string stored;  // the tensor that they change
  std::vector<int64_t> a_dims, b_dims;
  std::vector<float> a, b;
};

class AdapterExport {
 public:
  AdapterExport(Backend& backend, const LoadedModel& names, const std::string& dir)
      : backend_(backend),
        names_(names),
        architecture_(require_gguf_architecture(names.config)),
        file_(backend, names, dir) {
    build_row_orders();
    alpha_ = first_nonzero_alpha(file_.modules());
  }

  // Returns how many modules the file has, an A and a B each.
  int64_t write_lora_file(const std::string& path) {
    const GgufHeader header = make_header();
    AtomicFile file(path);
    file.append(header.serialise());
    read_each_tensor([&](const Factors& f) {
      append_padded(file, f.a);
      append_padded(file, f.b);
    });
    file.commit();
    return std::ssize(header.tensors()) / 2;  // an A and a B each
  }

 private:
  // Alpha of the first module that does something: what is multiplied by 0 has no factor.
  static double first_nonzero_alpha(const std::vector<MatchedModule>& modules) {
    for (const MatchedModule& module : modules) {
      if (module.spec.alpha != 0.0) return module.spec.alpha;
    }
    return 1.0;
  }

  GgufHeader make_header() {
    const GgufEncoding& f32 = *find_gguf_encoding("f32");
    GgufHeader header;
    header.add_text("general.architecture", architecture_.name);
    header.add_text("general.type", "adapter");
    header.add_text("adapter.type", "lora");
    header.add_number("adapter.lora.alpha", alpha_);
    read_each_tensor([&](const Factors& f) {
      header.add_tensor(f.stored + ".lora_a", *f32.type, f.a_dims);
      header.add_tensor(f.stored + ".lora_b", *f32.type, f.b_dims);
    });
    return header;
  }

  // Modules are read when their turn comes, and again the next time.
  template <typename Body>
  void read_each_tensor(Body body) {
    for (size_t i = 0; i < file_.modules().size(); ++i) {
      factors_.clear();
      add_module_factors(file_.read_module(i)->modules().front());
      for (const Factors& f : factors_) body(f);
    }
  }

  static void append_padded(AtomicFile& file, const std::vector<float>& values) {
    constexpr size_t kTo = GgufHeader::kAlignment;
    const auto bytes = std::as_bytes(std::span(values));
    file.append(bytes);
    file.append(std::string((kTo - bytes.size() % kTo) % kTo, '\0'));
  }

  // The orders of the model's own file, whose header is made for them.
  void build_row_orders() {
    GgufHeader header;
    header.add_text("general.architecture", architecture_.name);
    add_config_keys(names_.config, header);
    const WeightOrigins origins(*names_.checkpoint, names_, /*unties=*/false);
    add_model_tensors(names_.config, origins, "f32", names_.dir, header);
    const ParsedHeader read(header);
    for (const GgufWeight& weight : read.weights()) orders_[weight.name] = weight;
  }

  // The canonical name of the weight that a module of a layer changes, or of a half of one.
  [[nodiscard]] std::string weight_name(const LoraModule& module, std::string_view last) const {
    const std::string_view path = module.target->path;
    const std::string of_experts = module.num_experts > 0 ? ".0" : "";
    const size_t dot = path.rfind('.');
    return fmt::format("model.layers.{}.{}{}.{}.weight", module.spec.layer, path.substr(0, dot),
                       of_experts, last);
  }

  [[nodiscard]] std::vector<float> host_values(TensorView tensor) const {
    std::vector<float> values(static_cast<size_t>(tensor.shape.num_elements()));
    ops::to_host(backend_, tensor, values);
    return values;
  }

  // B with what the module's scale is besides that of the file's alpha.
  [[nodiscard]] std::vector<float> b_scaled_to_file_alpha(const LoraModule& module) const {
    std::vector<float> b = host_values(module.b);
    const double factor = module.spec.scale / (alpha_ / static_cast<double>(module.spec.rank));
    for (float& value : b) value = static_cast<float>(static_cast<double>(value) * factor);
    return b;
  }

  void add_module_factors(const LoraModule& module) {
    const std::vector<float> a = host_values(module.a);
    const std::vector<float> b = b_scaled_to_file_alpha(module);
    if (module.is_embedding()) return add_embedding_factors(module, a, b);
    if (module.spec.layer < 0) {
      if (module.spec.target != kHead) refuse(module);
      return add_weight_factors(module, kHeadName, a, b, 0);
    }
    if (module.spec.layer >= names_.config.num_layers()) refuse(module);
    // gate and up have an A each here, and one tensor there.
    const bool is_down = module.target->name() == "down_proj";
    if (module.num_experts > 0 && architecture_.fuses_gate_up && !is_down) refuse(module);
    const bool is_pair = module.target->num_halves > 1;
    if (!is_pair)
      return add_weight_factors(module, weight_name(module, module.target->name()), a, b, 0);
    add_weight_factors(module, weight_name(module, "gate_proj"), a, b, 0);
    add_weight_factors(module, weight_name(module, "up_proj"), a, b, 1);
  }

  [[noreturn]] void refuse(const LoraModule& module) const {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("--to gguf-lora: module '{}': llama.cpp has no such tensor of {}",
                            module.path, architecture_.name));
  }

  static std::vector<float> transposed(const std::vector<float>& values, int64_t rows,
                                       int64_t columns) {
    std::vector<float> out(values.size());
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        out[static_cast<size_t>(c * rows + r)] = values[static_cast<size_t>(r * columns + c)];
      }
    }
    return out;
  }

  // Rows are looked up: A is [V, r].
  void add_embedding_factors(const LoraModule& module, const std::vector<float>& a,
                             const std::vector<float>& b) {
    const int64_t rank = module.spec.rank;
    const int64_t rows = std::ssize(a) / rank;
    Factors& f = factors_.emplace_back();
    f.stored = "token_embd.weight";
    f.a_dims = {rows, rank};
    f.b_dims = {std::ssize(b) / rank, rank};
    f.a = transposed(a, rank, rows);
    f.b = b;
  }

  void add_weight_factors(const LoraModule& module, const std::string& name,
                          const std::vector<float>& a, const std::vector<float>& b, int64_t half) {
    const int64_t experts = std::max<int64_t>(1, module.num_experts);
    const int64_t rank = module.spec.rank;
    const int64_t in = std::ssize(a) / experts / rank;
    const int64_t halves = module.target->num_halves;
    const int64_t out = std::ssize(b) / experts / rank / halves;
    Factors& f = factors_.emplace_back();
    f.stored = checked_stored_name(module, name);
    if (module.num_experts > 0) f.a_dims = f.b_dims = {experts};
    f.a_dims.insert(f.a_dims.end(), {rank, in});
    f.b_dims.insert(f.b_dims.end(), {out, rank});
    f.a = a;
    f.b = half_of_each(b, experts, halves, half);
    permute_to_stored_order(name, rank, f);
  }

  [[nodiscard]] std::string checked_stored_name(const LoraModule& module,
                                                const std::string& name) const {
    std::string stored = gguf_stored_name(architecture_, name, names_.config.num_layers());
    const bool is_tied = module.spec.layer < 0 && names_.config.tie_word_embeddings;
    if (stored.empty() || is_tied) refuse(module);
    return stored;
  }

  // The values of one half of every expert, of B [experts, halves, ...].
  static std::vector<float> half_of_each(const std::vector<float>& b, int64_t experts,
                                         int64_t halves, int64_t half) {
    const int64_t count = std::ssize(b) / experts / halves;
    std::vector<float> out;
    for (int64_t e = 0; e < experts; ++e) {
      const auto begin = b.begin() + (e * halves + half) * count;
      out.insert(out.end(), begin, begin + count);
    }
    return out;
  }

  // Where a file has the rows or columns of the weight in an order of its own.
  void permute_to_stored_order(const std::string& name, int64_t rank, Factors& f) const {
    const auto found = orders_.find(name);
    if (found == orders_.end()) return;
    permute_items(found->second.rows, rank, 1, f.b);
    permute_items(found->second.columns, 1, rank, f.a);
  }

  Backend& backend_;
  const LoadedModel& names_;
  const GgufArchitecture& architecture_;
  AdapterModules file_;
  double alpha_ = 0.0;
  std::unordered_map<std::string, GgufWeight> orders_;
  std::vector<Factors> factors_;  // of one module
};

}  // namespace

int64_t write_gguf_lora(Backend& backend, const LoadedModel& names, const std::string& adapter_dir,
                        const std::string& path) {
  return AdapterExport(backend, names, adapter_dir).write_lora_file(path);
}

}  // namespace strata::model
