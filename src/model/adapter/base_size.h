// SPDX-License-Identifier: Apache-2.0
// What an adapter's tensors say of the size of its base: the one sentence that helps where an
// adapter meets another model, in which nearly each of its modules is a fault. Any thread.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/peft.h"
#include "model/weights/load.h"

namespace strata::model {

struct BaseSize {
  int64_t width = 0;       // of the hidden state; 0: no module shows it
  int64_t num_layers = 0;  // one more than the last adapted layer
};
BaseSize base_size_of_adapter(const PeftAdapter& peft);

// "this adapter is of models/smol (576 wide, 30 layers); the model is tiny-qwen3 (192 wide, 4
// layers)". Empty where the adapter names this model and nothing shows another size.
std::string other_base_sentence(const PeftAdapter& peft, const LoadedModel& model);

// Why the modules of a PEFT directory do not fit a model, all of them; where that may be since it
// is another model, the sentence above is the first. `model` may be one that can only plan.
std::vector<std::string> find_adapter_faults(const LoadedModel& model, const PeftAdapter& peft);

}  // namespace strata::model
