// SPDX-License-Identifier: Apache-2.0
// PEFT LoRA directories: adapter_config.json and adapter_model.safetensors. PeftAdapter reads one;
// the tensors of the file decide what is adapted, and each of them is accounted for: a part of a
// module, a copy of a base weight, or a fault. All faults come in one Error. Reading is for any
// thread, as SafetensorsFile. R rank, D model, V vocabulary.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/peft_config.h"
#include "checkpoint/safetensors.h"
#include "tensor/view.h"

namespace strata {

// How a module of routed experts is stored; E experts.
//   kPlain: no experts, or one expert of many: A [R, in], B [out, R]
//   kFused: PEFT's target_parameters: A [E R, in], row e R + j is rank j of expert e; B [out, E R],
//     column j E + e is rank j of expert e
//   kStacked: Tinker's: A [E, R, in], B [E, out, R]; a leading 1 stands for every expert
enum class PeftForm : uint8_t { kPlain, kFused, kStacked };

struct PeftModule {
  std::string module_path;  // in the base model: "model.layers.0.self_attn.q_proj"
  TensorInfo a;             // [R, in]; of an embedding [R, V]; its name is the key in the file
  TensorInfo b;             // [out, R]; of an embedding [D, R]
  int64_t rank = 0;
  double alpha = 0;
  double scaling = 0;
  bool embedding = false;            // lora_embedding_A and _B: y = base(id) + scaling * B A[:, id]
  PeftForm form = PeftForm::kPlain;  // kFused: module_path ends in gate_up_proj or down_proj
};

// PEFT stores the base weight next to an adapted embedding or head. The caller compares it with its
// model.
struct PeftBaseCopy {
  std::string base_name;  // the tensor it copies: "model.embed_tokens.weight"
  TensorInfo tensor;
};

class PeftAdapter {
 public:
  explicit PeftAdapter(const std::string& dir);

  [[nodiscard]] const PeftConfig& config() const { return config_; }
  [[nodiscard]] std::span<const PeftModule> modules() const { return modules_; }  // sorted by path
  [[nodiscard]] std::span<const PeftBaseCopy> base_copies() const { return base_copies_; }
  [[nodiscard]] const SafetensorsFile& file() const { return file_; }

 private:
  PeftConfig config_;
  SafetensorsFile file_;
  std::vector<PeftModule> modules_;
  std::vector<PeftBaseCopy> base_copies_;
};

struct PeftWriteModule {
  std::string module_path;
  bool embedding = false;
  double alpha = 0;
  TensorView a;          // f32 [R, in], rows may be apart; of other forms as stored, dense
  TensorView b;          // f32 [out, R], rows may be apart
  int64_t rank = 0;      // 0: the rows of a
  std::string key = {};  // of the tensors, where it is not module_path
  // Where PEFT adapts a parameter and not a module ("...experts.down_proj",
  // "...mlp.up_proj.weight"): its name in target_parameters and in patterns.
  std::string parameter = {};
  // Where a and b have no memory: writes the dense tensor to `out` when its turn comes.
  std::function<void(bool is_b, float* out)> fill = {};
};

struct PeftWriteOptions {
  bool use_rslora = false;
  std::string base_model_name_or_path = {};
  // Short names ("q_proj") that PEFT shall match modules by; each module must match one. Empty: the
  // paths of the modules themselves, which is right also where only some layers are adapted.
  std::vector<std::string> target_modules = {};
  std::vector<std::string> target_parameters = {};
  // The alpha of modules without a pattern of their own; not given: the one that most modules have.
  std::optional<double> lora_alpha = {};
  std::map<std::string, std::string> metadata =
      {};  // of the tensors' file, besides {"format": "pt"}
};

// Writes the two files, tensors as F32, and creates `dir` when it is not there; other files stay. A
// crash leaves the old adapter, the new one, or (only where the two configs differ) a directory
// without tensors.
void write_peft(const std::string& dir, const PeftWriteOptions& options,
                std::span<const PeftWriteModule> modules);

}  // namespace strata
