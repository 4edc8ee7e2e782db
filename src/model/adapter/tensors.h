// SPDX-License-Identifier: Apache-2.0
// The tensors an adapter's file holds: one A and one B for each module, but for routed experts,
// whose modules are stored in one of three forms (ExpertForm). Between them and the masters or
// gradients of a module. E experts, R rank. Engine thread only.
#pragma once
#include <string>
#include <vector>

#include "checkpoint/peft.h"
#include "model/adapter/lora.h"

namespace strata::model {

struct AdapterTensor {
  std::string name;   // in the file
  Shape shape;        // as stored
  size_t module = 0;  // in LoraAdapter::modules()
  bool is_b = false;
  int64_t expert = -1;  // of ExpertForm::kPerExpert
};

// In the order of the modules.
std::vector<AdapterTensor> adapter_tensors(const LoraAdapter& adapter);

// A and B of a module that is no expert's, as a file has them: views, or where B's rows have
// another order there what writes them. Borrows the module.
void set_stored_values(const LoraModule& module, PeftWriteModule& out);

// The row of B in ExpertForm::kFused that output `out` of a target's module is: the halves of
// gate_up_proj, which are one behind the other here, may alternate there.
int64_t fused_row(const LoraTarget& target, int64_t out);

// Copies a tensor's part of `module_values`, which is the module's a or b, or their gradients, to
// `stored` (dense, in the tensor's order), or back.
void copy_to_stored(const LoraModule& module, const AdapterTensor& tensor, TensorView module_values,
                    float* stored);
void copy_from_stored(const LoraModule& module, const AdapterTensor& tensor, const float* stored,
                      TensorView module_values);

// Names of a fresh module's tensors, PEFT's own; "{}" stands for the expert.
void set_peft_tensor_names(LoraModule& module);
// "...mlp.experts.down_proj" of expert 3 is "...mlp.experts.3.down_proj".
std::string expert_path(const LoraModule& module, int64_t expert);

}  // namespace strata::model
