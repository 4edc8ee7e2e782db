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

enum class RopeType { kDefault, kLinear, kLlama3, kYarn };

struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1.0;                             // linear, llama3, yarn
  double low_freq_factor = 1.0;                    // llama3
  double high_freq_factor = 4.0;                   // llama3
  double original_max_position_embeddings = 8192;  // llama3, yarn
  double beta_fast = 32.0;                         // yarn, like all below
  double beta_slow = 1.0;
  bool truncate = true;           // the ramp's ends to whole pairs
  double mscale = 0.0;            // 0: not given
  double mscale_all_dim = 0.0;    // 0: not given
  double attention_factor = 0.0;  // of cos and sin; 0: not given, made of the two above
  friend bool operator==(const RopeConfig&, const RopeConfig&) = default;
};

// Latent attention (DeepSeek-V3): keys and values of all heads are made of one latent vector a
// token, which is what the cache holds, with one rotated part that the keys share.
struct MlaConfig {
  int64_t q_lora_rank = 0;   // 0: queries come from the hidden state directly
  int64_t kv_lora_rank = 0;  // width of the latent; 0: no latent attention
  int64_t nope_dim = 0;      // of a head's query and key, not rotated
  int64_t rope_dim = 0;      // rotated
  int64_t value_dim = 0;     // of a head's value
  bool rope_interleave = true;
  [[nodiscard]] int64_t cache_width() const { return kv_lora_rank + rope_dim; }
  // Outputs of kv_b_proj: for each head nope_dim rows of keys, then value_dim rows of values.
  [[nodiscard]] int64_t head_rows() const { return nope_dim + value_dim; }
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
  int64_t head_dim = 0;  // latent attention: nope_dim + rope_dim
  int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;
  double initializer_range = 0.02;
  bool tie_word_embeddings = false;
  bool attention_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;
  RopeConfig rope;
  MoeConfig moe;
  MlaConfig mla;
  int64_t num_mtp_layers = 0;          // beyond num_layers in a checkpoint; they take no part
  std::vector<LayerKind> layer_kinds;  // [num_layers], or empty: grouped queries and a dense MLP
  std::optional<DType> dtype;          // what the file says of its weights
  std::vector<int64_t> eos_token_ids;

  [[nodiscard]] LayerKind layer_kind(int64_t layer) const {
    return layer_kinds.empty() ? LayerKind{} : layer_kinds[static_cast<size_t>(layer)];
  }
  [[nodiscard]] int64_t q_width() const { return num_heads * head_dim; }
  [[nodiscard]] int64_t kv_width() const { return num_kv_heads * head_dim; }
  // Elements that the cache holds of one position in one layer.
  [[nodiscard]] int64_t cache_width() const {
    return mla.kv_lora_rank > 0 ? mla.cache_width() : 2 * kv_width();
  }
  [[nodiscard]] int64_t rope_dim() const { return mla.kv_lora_rank > 0 ? mla.rope_dim : head_dim; }
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

// Frequencies of the dim / 2 rotary pairs, in double, and what cos and sin are multiplied by (HF
// modeling_rope_utils.py).
std::vector<double> rope_frequencies(const RopeConfig& rope, int64_t dim);
double rope_attention_factor(const RopeConfig& rope);

}  // namespace strata::model
