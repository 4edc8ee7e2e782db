// Llama 2, Llama 3, 3.1, 3.2 and what shares their architecture (SmolLM2).
// Source: HF modeling_llama.py and configuration_llama.py.
#include <fmt/format.h>

#include "base/error.h"
#include "model/family.h"

namespace strata::model {
namespace {

constexpr std::string_view kArchitectures[] = {"LlamaForCausalLM"};
constexpr std::string_view kRead[] = {"architectures",
                                      "vocab_size",
                                      "hidden_size",
                                      "intermediate_size",
                                      "num_hidden_layers",
                                      "num_attention_heads",
                                      "num_key_value_heads",
                                      "head_dim",
                                      "max_position_embeddings",
                                      "rms_norm_eps",
                                      "initializer_range",
                                      "tie_word_embeddings",
                                      "attention_bias",
                                      "mlp_bias",
                                      "rope_theta",
                                      "rope_scaling",
                                      "rope_parameters",
                                      "torch_dtype",
                                      "dtype",
                                      "eos_token_id",
                                      "partial_rotary_factor"};
constexpr std::string_view kInert[] = {"model_type",
                                       "use_cache",
                                       "_name_or_path",
                                       "transformers_version",
                                       "attention_dropout",
                                       "bos_token_id",
                                       "pad_token_id",
                                       "return_dict",
                                       "output_attentions",
                                       "output_hidden_states",
                                       "chunk_size_feed_forward",
                                       "id2label",
                                       "label2id",
                                       "problem_type",
                                       "is_encoder_decoder",
                                       "unsloth_fixed",
                                       "unsloth_version",
                                       "transformers.js_config",
                                       "_attn_implementation_autoset",
                                       "is_llama_config",
                                       "rope_interleaved",
                                       "finetuning_task",
                                       "task_specific_params",
                                       "prefix",
                                       "tokenizer_class",
                                       "_attn_implementation",
                                       "_model_name_or_path",
                                       "unk_token_id"};
constexpr NeutralKey kNeutral[] = {
    {"hidden_act", "\"silu\""},       {"pretraining_tp", "1"}, {"use_sliding_window", "false"},
    {"add_cross_attention", "false"}, {"is_decoder", "false"}, {"tie_encoder_decoder", "false"}};
constexpr std::string_view kIgnored[] = {"rotary_emb.inv_freq"};

void read_llama(const ConfigObject& object, ModelConfig& config) {
  config.num_kv_heads = object.integer("num_key_value_heads", config.num_heads);
  config.head_dim = object.integer("head_dim", config.hidden_size / config.num_heads);
  config.mlp_bias = object.boolean("mlp_bias", false);
  if (config.num_kv_heads < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: num_key_value_heads must be at least 1", object.where()));
  }
}

}  // namespace

const Family kLlamaFamily = {.name = "llama",
                             .architectures = kArchitectures,
                             .read_keys = kRead,
                             .inert_keys = kInert,
                             .neutral_keys = kNeutral,
                             .read = read_llama,
                             .ignored_suffixes = kIgnored};

}  // namespace strata::model
