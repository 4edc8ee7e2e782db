// Llama 2, Llama 3, 3.1, 3.2 and what shares their architecture (SmolLM2).
// Source: HF modeling_llama.py and configuration_llama.py.
#include "model/family.h"

namespace strata::model {
namespace {

constexpr std::string_view kArchitectures[] = {"LlamaForCausalLM"};
constexpr std::string_view kRead[] = {"mlp_bias"};
constexpr std::string_view kInert[] = {"transformers.js_config", "is_llama_config",
                                       "rope_interleaved"};
constexpr NeutralKey kNeutral[] = {{"pretraining_tp", "1"}};

void read_llama(const ConfigObject& object, ModelConfig& config) {
  config.num_kv_heads = object.integer("num_key_value_heads", config.num_heads);
  config.head_dim = object.integer("head_dim", config.hidden_size / config.num_heads);
  config.mlp_bias = object.boolean("mlp_bias", false);
}

}  // namespace

const Family kLlamaFamily = {.name = "llama",
                             .architectures = kArchitectures,
                             .read_keys = kRead,
                             .inert_keys = kInert,
                             .neutral_keys = kNeutral,
                             .read = read_llama};

}  // namespace strata::model
