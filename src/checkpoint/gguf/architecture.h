// SPDX-License-Identifier: Apache-2.0
// What a GGUF file's architecture has under which names: for each, the Hugging Face model that it
// is, its keys as that model's config.json, and its tensors as that model's.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/gguf/gguf_model.h"

namespace strata {

// One Hugging Face tensor, made of rows of one of the file's.
struct GgufWeight {
  enum class Change : uint8_t {
    kNone,
    kMinusOne,       // norms whose multiplier is 1 + w are stored as that
    kLogOfNegative,  // A_log is stored as -exp(A_log)
  };
  std::string name;
  std::vector<int64_t> dims;
  GgufModel::Tensor from;
  int64_t first_row = 0;              // of those rows
  std::vector<int32_t> rows = {};     // which row each one is, counted from first_row; empty: as is
  std::vector<int32_t> columns = {};  // which column each one is; empty: as they are
  Change change = Change::kNone;
  float scale = 1.0f;  // of NVFP4, besides the blocks'
  // kv_b_proj, where a file has its two parts: `from` is [heads, rank, nope], this [heads, value,
  // rank]; each head has nope rows, columns of the first, and value rows of this.
  GgufModel::Tensor values = {};
};

struct GgufArchitecture {
  std::string_view name;         // "qwen3"
  std::string_view model_class;  // "Qwen3ForCausalLM"
  std::string_view model_type;   // "qwen3"
  bool paired_heads = false;     // rows of q and k are stored in pairs
  bool norms_plus_one = false;
  bool is_hybrid = false;  // with gated delta nets
  bool has_mla = false;
  bool has_sinks = false;  // gpt-oss
  // What Hugging Face's names of experts begin with below a layer.
  std::string_view experts = "mlp.experts.";
  bool fuses_gate_up = false;  // of experts, where the file is written here; files may have either
  std::string_view tokenizer = {};  // tokenizer.ggml.model, where it is the architecture's own
};

// Error{kUnsupported} that lists the known ones.
const GgufArchitecture& gguf_architecture(const GgufModel& model);
// By its name, or null.
const GgufArchitecture* find_gguf_architecture(std::string_view name);

// Every tensor of the model under its Hugging Face name; what no name is known for has its own, and
// what takes no part in any forward is left out.
std::vector<GgufWeight> gguf_weights(const GgufModel& model);

// The text of a config.json. Keys of the architecture that it does not use are members of their
// own names, for the reader to warn of.
std::string gguf_config(const GgufModel& model);

// Layers of the decoder, without those of multi-token prediction.
int64_t gguf_num_layers(const GgufModel& model);
// "ARCH.key".
std::string gguf_key(const GgufModel& model, std::string_view key);

}  // namespace strata
