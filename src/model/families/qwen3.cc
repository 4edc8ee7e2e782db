// Qwen3 dense: RMSNorm on every query and key head before RoPE, an explicit head_dim.
// Source: HF modeling_qwen3.py and configuration_qwen3.py.
#include <fmt/format.h>

#include "base/error.h"
#include "model/family.h"

namespace strata::model {
namespace {

constexpr std::string_view kArchitectures[] = {"Qwen3ForCausalLM"};
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
                                      "rope_theta",
                                      "rope_scaling",
                                      "rope_parameters",
                                      "torch_dtype",
                                      "dtype",
                                      "eos_token_id",
                                      "partial_rotary_factor",
                                      "layer_types"};
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
                                       "sliding_window",
                                       "max_window_layers",
                                       "finetuning_task",
                                       "task_specific_params",
                                       "prefix",
                                       "tokenizer_class",
                                       "_attn_implementation",
                                       "_model_name_or_path",
                                       "unk_token_id"};
constexpr NeutralKey kNeutral[] = {{"hidden_act", "\"silu\""},
                                   {"use_sliding_window", "false"},
                                   {"add_cross_attention", "false"},
                                   {"is_decoder", "false"},
                                   {"tie_encoder_decoder", "false"}};
constexpr std::string_view kIgnored[] = {"rotary_emb.inv_freq"};

void read_qwen3(const ConfigObject& object, ModelConfig& config) {
  constexpr int64_t kDefaultKvHeads = 32;   // configuration_qwen3.py
  constexpr int64_t kDefaultHeadDim = 128;  // configuration_qwen3.py: not hidden_size / heads
  config.num_kv_heads = object.integer("num_key_value_heads", kDefaultKvHeads);
  config.head_dim = object.integer("head_dim", kDefaultHeadDim);
  config.qk_norm = true;
  if (config.num_kv_heads < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: num_key_value_heads must be at least 1", object.where()));
  }
  for (const std::string& type : object.texts("layer_types")) {
    if (type != "full_attention") {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("{}: layer_types: got '{}', only full_attention is supported",
                              object.where(), type));
    }
  }
}

}  // namespace

const Family kQwen3Family = {.name = "qwen3",
                             .architectures = kArchitectures,
                             .read_keys = kRead,
                             .inert_keys = kInert,
                             .neutral_keys = kNeutral,
                             .read = read_qwen3,
                             .ignored_suffixes = kIgnored};

}  // namespace strata::model
