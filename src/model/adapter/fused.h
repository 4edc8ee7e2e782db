// SPDX-License-Identifier: Apache-2.0
// Adapters in the form that PEFT 0.21 loads on transformers 5, where a layer's experts are two
// tensors, gate_up_proj and down_proj, which target_parameters adapts (checkpoint/peft.h, kFused).
// gate and up have an A each here, so gate_up_proj has the ranks of both: gate's first, then up's,
// and in B gate's outputs have zeros at up's ranks and up's at gate's. The tensors' file says so in
// its metadata, by which reading it gives the same adapter again, gate and up apart; a file of
// PEFT's own lacks that and is read as the whole tensors that it holds. E experts, R rank of a
// tensor in the file, r that of a module. Engine thread only.
#pragma once
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/peft.h"
#include "model/adapter/lora.h"

namespace strata::model {

// Why an adapter of these modules cannot be written by save_adapter_for_peft(), as a sentence;
// empty where it can. A fresh one always can.
std::string find_peft_export_fault(const LayerTable& layers, std::span<const LoraModuleSpec> specs);

// Writes a PEFT directory, F32, of an adapter in which find_peft_export_fault() finds none. In
// families that may have experts PEFT takes gate_proj, up_proj and down_proj in target_modules for
// the experts' own, so those of dense layers and of shared experts are named by target_parameters
// too; so is what is no plain linear layer. An adapter that has gate_up_proj as a file of PEFT's
// own is written as such a file.
void save_adapter_for_peft(const LoraAdapter& adapter, const ModelConfig& config,
                           const std::string& dir, const std::string& base_model_name,
                           std::map<std::string, std::string> metadata = {});

// Which part of a file's fused tensors a module is.
struct FusedPart {
  int64_t first_rank = 0;
  int64_t half = 0;        // of gate_up_proj: 0 gate, 1 up
  int64_t num_halves = 1;  // of the file's tensor that the module is one of
};

// What alpha of a file's tensor is of that of each of the `count` modules in it, at as many times
// their rank, so that they keep their scale.
double fused_alpha_factor(int64_t count, bool use_rslora);

// The halves that gate_up_proj of a file of save_adapter_for_peft() is made of: {"gate_proj",
// "up_proj"}, one of them, or none; nothing for another file. Error for metadata that is damaged.
std::optional<std::vector<std::string>> parse_gate_up_names(const PeftAdapter& peft);

// Whether B [out, E R] has zeros wherever a half's outputs meet the other half's ranks, and in the
// outputs of a half that is not there.
bool is_block_diagonal(const PeftAdapter& peft, const PeftModule& gate_up, const LoraTarget& target,
                       const std::vector<std::string>& halves);

// The module's A and B from its part of the file's.
void read_fused_part(const PeftAdapter& peft, const PeftModule& source, const FusedPart& part,
                     LoraModule& module);

}  // namespace strata::model
