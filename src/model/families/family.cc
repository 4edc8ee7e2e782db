// SPDX-License-Identifier: Apache-2.0
#include "model/families/family.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "model/connectors/pre_norm_add.h"
#include "model/families/quantization.h"

namespace strata::model {

extern const Family kLlamaFamily, kQwen3Family, kQwen3MoeFamily, kDeepseekV3Family, kQwen2Family,
    kMistralFamily, kGemma3Family, kQwen35Family, kQwen35MoeFamily, kDeepseekV4Family,
    kGraniteFamily, kGraniteMoeFamily, kSmolLm3Family, kMinistral3Family, kGemmaFamily,
    kMixtralFamily, kGlm4MoeFamily, kOlmo2Family, kOlmo3Family, kGlm4Family, kPhi3Family,
    kDeepseekV2Family, kGptOssFamily, kGemma2Family, kLfm2Family, kQwen3NextFamily, kGemma4Family,
    kGemma4UnifiedFamily, kLlama4Family;

namespace {

// One row a family.
constexpr const Family* kFamilies[] = {
    &kLlamaFamily,       //
    &kQwen3Family,       //
    &kQwen3MoeFamily,    //
    &kDeepseekV3Family,  //
    &kQwen2Family,       //
    &kMistralFamily,     //
    &kGemma3Family,      //
    &kQwen35Family,      //
    &kQwen35MoeFamily,   //
    &kDeepseekV4Family,  //
    &kGraniteFamily,     //
    &kGraniteMoeFamily,  //
    &kSmolLm3Family,     //
    &kMinistral3Family,  //
    &kGemmaFamily,       //
    &kMixtralFamily,     //
    &kGlm4MoeFamily,     //
    &kOlmo2Family,       //
    &kOlmo3Family,       //
    &kGlm4Family,        //
    &kPhi3Family,        //
    &kDeepseekV2Family,  //
    &kGptOssFamily,      //
    &kGemma2Family,      //
    &kLfm2Family,        //
    &kQwen3NextFamily,   //
    &kGemma4Family,     &kGemma4UnifiedFamily, &kLlama4Family,
};

// What the files of every family have; a family names only its own besides these.
constexpr std::string_view kReadKeys[] = {"architectures",
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
                                          "original_max_position_embeddings",
                                          "quantization_config"};
constexpr std::string_view kInertKeys[] = {"model_type",
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
                                           "_attn_implementation_autoset",
                                           "finetuning_task",
                                           "task_specific_params",
                                           "prefix",
                                           "tokenizer_class",
                                           "_attn_implementation",
                                           "_model_name_or_path",
                                           "unk_token_id"};
constexpr NeutralKey kNeutralKeys[] = {
    {"hidden_act", "\"silu\""},      {"hidden_act", "\"swish\""},
    {"use_sliding_window", "false"}, {"add_cross_attention", "false"},
    {"is_decoder", "false"},         {"tie_encoder_decoder", "false"}};
constexpr std::string_view kIgnoredSuffixes[] = {"rotary_emb.inv_freq"};

bool contains(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

DType parse_dtype(const ConfigObject& object, std::string_view key) {
  const std::string name = object.text(key);
  if (name == "float32") return DType::kF32;
  if (name == "bfloat16") return DType::kBF16;
  if (name == "float16") return DType::kF16;
  object.fail(fmt::format("key '{}': got '{}', want float32, bfloat16 or float16", key, name));
}

// The dtype under either of its two names; none where neither is there.
std::optional<DType> read_dtype(const ConfigObject& object) {
  std::optional<DType> older, newer;
  if (object.has("torch_dtype")) older = parse_dtype(object, "torch_dtype");
  if (object.has("dtype")) newer = parse_dtype(object, "dtype");
  if (older && newer && *older != *newer) {
    fail_disagreement(object, "torch_dtype", "dtype");
  }
  return newer ? newer : older;
}

}  // namespace

void fail_disagreement(const ConfigObject& object, std::string_view key, std::string_view other) {
  object.fail(
      fmt::format("{} {} and {} {} disagree", key, object.json(key), other, object.json(other)));
}

double read_positive_number(const ConfigObject& object, std::string_view key, double fallback) {
  const double value = object.number(key, fallback);
  if (!(value > 0.0) || !std::isfinite(value)) {
    object.fail(fmt::format("key '{}': got {}, want more than 0", key, value));
  }
  return value;
}

int64_t read_size(const ConfigObject& object, std::string_view key,
                  std::optional<int64_t> fallback) {
  constexpr int64_t kLargest = int64_t{1} << 31;
  const int64_t value = object.integer(key, fallback);
  if (value < 1 || value >= kLargest) {
    object.fail(fmt::format("key '{}': got {}, want at least 1 and below 2^31", key, value));
  }
  return value;
}

bool takes_any_value(const Family& family, std::string_view key) {
  return contains(kReadKeys, key) || contains(kInertKeys, key) || contains(family.read_keys, key) ||
         contains(family.inert_keys, key);
}

std::vector<std::string_view> neutral_values(const Family& family, std::string_view key) {
  std::vector<std::string_view> values;
  for (const std::span<const NeutralKey> keys :
       {family.neutral_keys, std::span<const NeutralKey>(kNeutralKeys)}) {
    for (const NeutralKey& item : keys) {
      if (item.key == key) values.push_back(item.value);
    }
    if (!values.empty()) break;
  }
  return values;
}

std::span<const std::string_view> ignored_suffixes() { return kIgnoredSuffixes; }

std::span<const Family* const> families() { return kFamilies; }

const Family* find_family(std::string_view architecture, std::string_view text_type) {
  const Family* found = nullptr;
  for (const Family* family : kFamilies) {
    if (contains(family->architectures, architecture)) return family;
    if (!is_text_part(*family, architecture)) continue;
    if (family->text_part->model_type == text_type) return family;
    if (found == nullptr) found = family;
  }
  return found;
}

bool is_text_part(const Family& family, std::string_view architecture) {
  return family.text_part != nullptr && contains(family.text_part->architectures, architecture);
}

ConfigObject require_text_config(const ConfigObject& whole) {
  const auto inner = whole.object("text_config");
  if (!inner) whole.fail("text_config is missing");
  constexpr std::string_view kOfWhole[] = {"dtype", "torch_dtype", "eos_token_id",
                                           "tie_word_embeddings", "quantization_config"};
  return inner->completed_by(whole, kOfWhole);
}

std::string text_type_of(const ConfigObject& whole) {
  const auto inner = whole.object("text_config");
  return inner ? inner->text("model_type", "") : "";
}

std::string extract_text_model_config(const std::string& text, const std::string& where) {
  const ConfigObject whole = ConfigObject::parse(text, where);
  for (const std::string& name : whole.texts("architectures")) {
    const Family* family = find_family(name, text_type_of(whole));
    if (family == nullptr || !is_text_part(*family, name)) continue;
    const std::string type(family->text_part->model_type);
    return require_text_config(whole).to_json_replacing(
        {{"architectures", fmt::format("[\"{}\"]", family->architectures.front())},
         {"model_type", fmt::format("\"{}\"", type)}});
  }
  return text;
}

int64_t read_kv_heads(const ConfigObject& object, const DecoderKeys& keys, int64_t fallback) {
  constexpr std::string_view kKey = "num_key_value_heads";
  return object.is_null(kKey) ? keys.num_heads : object.integer(kKey, fallback);
}

int64_t read_enabled_window(const ConfigObject& object, int64_t otherwise) {
  if (object.is_null("sliding_window") || !object.boolean("use_sliding_window", false)) return 0;
  if (!object.has("sliding_window")) return otherwise;
  return read_size(object, "sliding_window");
}

int64_t read_named_window(const ConfigObject& object) {
  return object.has("sliding_window") ? read_size(object, "sliding_window") : 0;
}

int64_t rotary_width(const RopeConfig& rope, int64_t head_dim) {
  return static_cast<int64_t>(static_cast<double>(head_dim) * rope.partial_rotary_factor);
}

std::vector<bool> read_sparse_layers(const ConfigObject& object, const DecoderKeys& keys,
                                     int64_t num_experts) {
  const int64_t step = object.integer("decoder_sparse_step", 1);
  if (step < 1) object.fail(fmt::format("decoder_sparse_step: got {}, want at least 1", step));
  const std::vector<int64_t> dense = object.integers("mlp_only_layers");
  std::vector<bool> sparse;
  for (int64_t layer = 0; layer < keys.num_layers; ++layer) {
    sparse.push_back(num_experts > 0 && (layer + 1) % step == 0 &&
                     std::find(dense.begin(), dense.end(), layer) == dense.end());
  }
  return sparse;
}

std::string_view choose_present_key(const ConfigObject& object, std::string_view name,
                                    std::string_view other) {
  if (!object.has(other)) return name;
  if (!object.has(name)) return other;
  if (object.integer(name) == object.integer(other)) return name;
  fail_disagreement(object, name, other);
}

std::vector<bool> read_layers_of_type(const ConfigObject& object, std::string_view type,
                                      int64_t num_layers,
                                      FunctionRef<bool(int64_t layer)> otherwise) {
  std::vector<bool> found;
  if (!object.has("layer_types")) {
    for (int64_t layer = 0; layer < num_layers; ++layer) found.push_back(otherwise(layer));
    return found;
  }
  for (const std::string& got : object.texts("layer_types")) {
    if (got != "full_attention" && got != type) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("{}: layer_types: got '{}', supported are full_attention and {}",
                              object.where(), got, type));
    }
    found.push_back(got == type);
  }
  if (std::ssize(found) != num_layers) {
    object.fail(fmt::format("layer_types: got {} layers, num_hidden_layers is {}", found.size(),
                            num_layers));
  }
  return found;
}

std::vector<bool> read_windowed_layers(const ConfigObject& object, int64_t num_layers,
                                       int64_t window) {
  const int64_t first = object.integer("max_window_layers", 28);
  return read_layers_of_type(object, "sliding_attention", num_layers,
                             [&](int64_t layer) { return window > 0 && layer >= first; });
}

LayerConfig make_pre_norm_layer(const ModelConfig& config, const Block& attention,
                                const Block& mlp) {
  const auto norm = [&](std::string_view name) {
    return Connector(kPreNormAdd, PreNormAddConfig{.norm = name,
                                                   .eps = config.rms_norm_eps,
                                                   .norm_offset = config.norm_offset});
  };
  return {{norm("input_layernorm.weight"), attention},
          {norm("post_attention_layernorm.weight"), mlp}};
}

void add_windowed_layers(const ConfigObject& object, const std::vector<bool>& sliding,
                         int64_t window, GqaConfig attention, const Block& mlp,
                         ModelConfig& config) {
  for (const bool has_window : sliding) {
    if (has_window && window == 0) object.fail("layer_types: sliding_attention without a window");
    attention.window = has_window ? window : 0;
    config.layers.push_back(make_pre_norm_layer(config, Block(kGqa, attention), mlp));
  }
}

namespace {

int64_t read_num_layers(const ConfigObject& object, const DecoderDefaults& defaults) {
  const int64_t count = defaults.num_layers == 0
                            ? object.integer("num_hidden_layers")
                            : object.integer("num_hidden_layers", defaults.num_layers);
  if (count < 0 || count > 10000) {
    object.fail(fmt::format("key 'num_hidden_layers': got {}, want 0 to 10000", count));
  }
  return count;
}

}  // namespace

DecoderKeys read_decoder_keys(const ConfigObject& object, const DecoderDefaults& defaults,
                              ModelConfig& config) {
  DecoderKeys keys;
  const auto size = [&](std::string_view key, int64_t otherwise) {
    return otherwise == 0 ? read_size(object, key) : read_size(object, key, otherwise);
  };
  config.vocab_size = size("vocab_size", defaults.vocab_size);
  config.hidden_size = size("hidden_size", defaults.hidden_size);
  keys.intermediate_size = size("intermediate_size", defaults.intermediate_size);
  keys.num_layers = read_num_layers(object, defaults);
  keys.num_heads = size("num_attention_heads", defaults.num_heads);
  config.max_position_embeddings =
      read_size(object, "max_position_embeddings", defaults.max_position_embeddings);
  config.rms_norm_eps = object.number("rms_norm_eps", defaults.rms_norm_eps);
  config.initializer_range = object.number("initializer_range", 0.02);
  config.tie_word_embeddings = object.boolean("tie_word_embeddings", defaults.tie_word_embeddings);
  keys.attention_bias = object.boolean("attention_bias", false);
  check_quantization(object);
  config.eos_token_ids = object.integers("eos_token_id");
  config.dtype = read_dtype(object);
  return keys;
}

}  // namespace strata::model
