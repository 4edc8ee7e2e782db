// SPDX-License-Identifier: Apache-2.0
#include "model/adapter/tensors.h"

#include <fmt/format.h>

#include <algorithm>

namespace strata::model {
namespace {

// The same name with the expert before its last component: "a.b.{}.c".
std::string with_expert(const std::string& path, std::string_view expert) {
  const size_t dot = path.rfind('.');
  return fmt::format("{}.{}{}", path.substr(0, dot), expert, path.substr(dot));
}

Shape stored_shape(const LoraModule& module, bool is_b) {
  const TensorView& values = is_b ? module.b : module.a;
  if (module.num_experts == 0 || module.form == ExpertForm::kStacked) return values.shape;
  const int64_t e = module.num_experts;
  const int64_t first = values.shape[1];
  const int64_t second = values.shape[2];
  if (module.form == ExpertForm::kPerExpert) return {first, second};
  if (module.target->swapped) return is_b ? Shape{e * second, first} : Shape{second, e * first};
  return is_b ? Shape{first, e * second} : Shape{e * first, second};
}

// for_each_index_pair() of a B [out, rank] whose rows have another order in files.
template <typename Body>
void for_each_reordered_index_pair(const LoraTarget& target, int64_t rank, Body body) {
  int64_t own = 0;
  for (const RowRuns& runs : target.stored_rows) {
    for (int64_t row = 0; row < runs.count * runs.rows; ++row, ++own) {
      const int64_t at = runs.first_row + row / runs.rows * runs.step + row % runs.rows;
      for (int64_t j = 0; j < rank; ++j) body(at * rank + j, own * rank + j);
    }
  }
  CHECK(own == target.out, own, target.out);
}

// for_each_index_pair() of PEFT's tensors of all experts where A and B change places: A [E, R, in]
// is stored as [in, E R], whose column j E + e is rank j of expert e, and B [E, out, R] as [E R,
// out].
template <typename Body>
void for_each_swapped_index_pair(const LoraModule& module, bool is_b, const TensorView& values,
                                 Body body) {
  const int64_t experts = module.num_experts;
  const int64_t first = values.shape[1], second = values.shape[2];
  for (int64_t e = 0; e < experts; ++e) {
    for (int64_t i = 0; i < first; ++i) {
      for (int64_t j = 0; j < second; ++j) {
        const int64_t own = (e * first + i) * second + j;
        const int64_t of_a = (j * first + i) * experts + e;
        const int64_t of_b = (e * second + j) * first + fused_row(*module.target, i);
        body(is_b ? of_b : of_a, own);
      }
    }
  }
}

// Calls body(index in stored, index in the module's values) for every element of the tensor.
template <typename Body>
void for_each_index_pair(const LoraModule& module, const AdapterTensor& tensor,
                         const TensorView& values, Body body) {
  const int64_t count = tensor.shape.num_elements();
  if (tensor.is_b && !module.target->stored_rows.empty()) {
    return for_each_reordered_index_pair(*module.target, values.shape[1], body);
  }
  const bool is_fused = module.num_experts > 0 && module.form == ExpertForm::kFused;
  if (is_fused && module.target->swapped) {
    return for_each_swapped_index_pair(module, tensor.is_b, values, body);
  }
  if (!is_fused || !tensor.is_b) {
    const int64_t first = std::max<int64_t>(0, tensor.expert) * count;
    for (int64_t i = 0; i < count; ++i) body(i, first + i);
    return;
  }
  // B [out, E R]: column j E + e is rank j of expert e
  const int64_t experts = module.num_experts;
  const int64_t out = values.shape[1];
  const int64_t rank = values.shape[2];
  for (int64_t o = 0; o < out; ++o) {
    const int64_t row = fused_row(*module.target, o);
    for (int64_t j = 0; j < rank; ++j) {
      for (int64_t e = 0; e < experts; ++e) {
        body((row * rank + j) * experts + e, (e * out + o) * rank + j);
      }
    }
  }
}

}  // namespace

void set_stored_values(const LoraModule& module, PeftWriteModule& out) {
  out.a = module.a;
  out.b = module.b;
  if (module.target->stored_rows.empty()) return;
  out.a.data = out.b.data = nullptr;
  out.fill = [&module](bool is_b, float* to) {
    const TensorView& values = is_b ? module.b : module.a;
    copy_to_stored(module, {.name = {}, .shape = values.shape, .is_b = is_b}, values, to);
  };
}

int64_t fused_row(const LoraTarget& target, int64_t out) {
  if (!target.alternating || target.num_halves == 1) return out;
  const int64_t half = target.out / target.num_halves;
  return out % half * target.num_halves + out / half;
}

std::string expert_path(const LoraModule& module, int64_t expert) {
  return with_expert(module.path, std::to_string(expert));
}

void set_peft_tensor_names(LoraModule& module) {
  std::string path = module.path;
  if (module.num_experts > 0) path = with_expert(path, "{}");
  const bool embedding = module.is_embedding();
  module.a_name =
      fmt::format("base_model.model.{}.lora_{}", path, embedding ? "embedding_A" : "A.weight");
  module.b_name =
      fmt::format("base_model.model.{}.lora_{}", path, embedding ? "embedding_B" : "B.weight");
}

std::vector<AdapterTensor> adapter_tensors(const LoraAdapter& adapter) {
  std::vector<AdapterTensor> tensors;
  for (size_t m = 0; m < adapter.modules().size(); ++m) {
    const LoraModule& module = adapter.modules()[m];
    const bool each = module.num_experts > 0 && module.form == ExpertForm::kPerExpert;
    for (int64_t e = 0; e < (each ? module.num_experts : 1); ++e) {
      for (const bool is_b : {false, true}) {
        const std::string& name = is_b ? module.b_name : module.a_name;
        tensors.push_back({.name = each ? fmt::format(fmt::runtime(name), e) : name,
                           .shape = stored_shape(module, is_b),
                           .module = m,
                           .is_b = is_b,
                           .expert = each ? e : -1});
      }
    }
  }
  return tensors;
}

void copy_to_stored(const LoraModule& module, const AdapterTensor& tensor, TensorView module_values,
                    float* stored) {
  const float* values = module_values.f32();
  for_each_index_pair(module, tensor, module_values,
                      [&](int64_t to, int64_t from) { stored[to] = values[from]; });
}

void copy_from_stored(const LoraModule& module, const AdapterTensor& tensor, const float* stored,
                      TensorView module_values) {
  float* values = module_values.f32();
  for_each_index_pair(module, tensor, module_values,
                      [&](int64_t from, int64_t to) { values[to] = stored[from]; });
}

}  // namespace strata::model
