// ModelConfig: what a family's config.json says, in one form for transformers 4 and 5 files. Plain
// values, const after load. Each family sorts the keys of its files into three sets: read, inert
// (they change nothing here), and refused unless at the value that changes nothing. Any other key
// is a warning, an Error with `strict`.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tensor/dtype.h"

namespace strata::model {

enum class RopeType { kDefault, kLinear, kLlama3 };

struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1.0;                             // linear, llama3
  double low_freq_factor = 1.0;                    // llama3
  double high_freq_factor = 4.0;                   // llama3
  double original_max_position_embeddings = 8192;  // llama3
};

// What a layer is made of; a family's reader says it for each layer.
enum class AttentionKind : uint8_t { kGqa, kMla };
enum class MlpKind : uint8_t { kDense, kMoe };

struct LayerKind {
  AttentionKind attention = AttentionKind::kGqa;
  MlpKind mlp = MlpKind::kDense;
  friend bool operator==(const LayerKind&, const LayerKind&) = default;
};

// How a router scores experts: softmax over all of them (Qwen3), or sigmoid with a correction bias
// that counts in the choice only, by groups (DeepSeek-V3).
enum class RouterKind : uint8_t { kSoftmax, kSigmoid };

struct MoeConfig {
  int64_t num_experts = 0;
  int64_t top_k = 0;
  int64_t expert_width = 0;  // of a routed expert's feed-forward
  int64_t shared_width = 0;  // of the shared experts together; 0: none
  RouterKind router = RouterKind::kSoftmax;
  bool norm_topk = false;  // weights of the chosen experts sum to one before `scale`
  int64_t num_groups = 1;  // sigmoid: experts in groups, of which top_groups take part
  int64_t top_groups = 1;
  double scale = 1.0;  // of the weights
};

struct ModelConfig {
  std::string family;        // "llama", "qwen3"
  std::string architecture;  // "LlamaForCausalLM"
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;
  double initializer_range = 0.02;
  bool tie_word_embeddings = false;
  bool attention_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;
  RopeConfig rope;
  MoeConfig moe;
  std::vector<LayerKind> layer_kinds;  // [num_layers], or empty: grouped queries and a dense MLP
  std::optional<DType> dtype;          // what the file says of its weights
  std::vector<int64_t> eos_token_ids;

  [[nodiscard]] LayerKind layer_kind(int64_t layer) const {
    return layer_kinds.empty() ? LayerKind{} : layer_kinds[static_cast<size_t>(layer)];
  }
  [[nodiscard]] int64_t q_width() const { return num_heads * head_dim; }
  [[nodiscard]] int64_t kv_width() const { return num_kv_heads * head_dim; }
  [[nodiscard]] float attention_scale() const;
};

struct ParsedConfig {
  ModelConfig config;
  std::vector<std::string> warnings;  // one sentence each
};

// Parses the text of a config.json; `where` is its path. Throws Error on a fault, an unknown
// architecture (the message lists the known ones), an unsupported value, and with `strict` on an
// unknown key.
ParsedConfig parse_config(const std::string& text, const std::string& where, bool strict);

// Frequencies of the head_dim / 2 rotary pairs, in double (HF modeling_rope_utils.py).
std::vector<double> rope_frequencies(const RopeConfig& rope, int64_t head_dim);

}  // namespace strata::model
