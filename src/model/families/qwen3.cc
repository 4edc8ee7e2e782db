// Qwen3 dense: RMSNorm on every query and key head before RoPE, an explicit head_dim.
// Source: HF modeling_qwen3.py and configuration_qwen3.py.
#include "model/family.h"

namespace strata::model {
namespace {

constexpr std::string_view kArchitectures[] = {"Qwen3ForCausalLM"};
constexpr std::string_view kRead[] = {"layer_types"};
constexpr std::string_view kInert[] = {"transformers.js_config", "sliding_window",
                                       "max_window_layers"};

void read_qwen3(const ConfigObject& object, ModelConfig& config) {
  constexpr int64_t kDefaultKvHeads = 32;   // configuration_qwen3.py
  constexpr int64_t kDefaultHeadDim = 128;  // configuration_qwen3.py: not hidden_size / heads
  config.num_kv_heads = object.integer("num_key_value_heads", kDefaultKvHeads);
  config.head_dim = object.integer("head_dim", kDefaultHeadDim);
  config.qk_norm = true;
  check_full_attention(object);
}

}  // namespace

const Family kQwen3Family = {.name = "qwen3",
                             .architectures = kArchitectures,
                             .read_keys = kRead,
                             .inert_keys = kInert,
                             .read = read_qwen3};

}  // namespace strata::model
