// SPDX-License-Identifier: Apache-2.0
#include "model/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "checkpoint/source.h"
#include "model/families/config_object.h"
#include "model/families/family.h"
#include "model/families/quantization.h"
#include "model/weights/layer_table.h"

namespace strata::model {
namespace {

// Models whose files look like those of one of the families, and are not.
struct OtherModel {
  std::string_view architecture;
  std::string_view model_type;
  std::string_view why;
  std::string_view key = {};  // that their files have and no other's
};
constexpr OtherModel kOthers[] = {
    {"DeepseekV41ForCausalLM", "deepseek_v41",
     "DeepSeek-V4.1 is another model than DeepSeek-V4 (layers that read other layers' keys, engram "
     "tables) and is not supported"},
    {"GraniteMoeHybridForCausalLM", "granitemoehybrid",
     "Granite 4's hybrid models (Mamba-2 layers) are not supported; its dense ones and GraniteMoE "
     "are"},
    {"GraniteMoeSharedForCausalLM", "granitemoeshared",
     "GraniteMoeShared (experts that every token has besides those it chooses) is not supported; "
     "GraniteMoE is"},
    {"GraniteSWAForCausalLM", "granite_swa",
     "Granite with sliding windows (granite_swa) is not supported; Granite without is"},
    {"Lfm2MoeForCausalLM", "lfm2_moe", "LFM2 with experts is not supported"},
    {"Lfm3ForCausalLM", "lfm3", "LFM3 is not supported"},
    {"GlmForCausalLM", "glm",
     "GLM-4-9B's first release (model_type glm) is not supported: its layers lack the norms of "
     "GLM-4-0414 and are not those of GLM-4.5"},
    {"", "",
     "these are the files of gpt-oss' own program (its folder original/); want those for "
     "transformers, in the folder above",
     "rope_ntk_alpha"}};

void refuse_lookalikes(const ConfigObject& object) {
  const std::string type = object.text("model_type", "");
  const std::vector<std::string> names = object.texts("architectures");
  for (const OtherModel& other : kOthers) {
    const bool named = std::find(names.begin(), names.end(), other.architecture) != names.end();
    const bool is_type = !other.model_type.empty() && type == other.model_type;
    if (named || is_type || (!other.key.empty() && object.contains(other.key)))
      throw Error(ErrorCode::kUnsupported, fmt::format("{}: {}", object.where(), other.why));
  }
}

std::vector<std::string_view> known_architectures() {
  std::vector<std::string_view> known;
  for (const Family* family : families()) {
    known.insert(known.end(), family->architectures.begin(), family->architectures.end());
    if (family->text_part == nullptr) continue;
    for (const std::string_view wider : family->text_part->architectures) {
      if (std::find(known.begin(), known.end(), wider) == known.end()) known.push_back(wider);
    }
  }
  return known;
}

// transformers goes by model_type, so where that is another model's the architecture alone would be
// a guess.
void check_model_type(const ConfigObject& object, const Family& family,
                      const std::string& architecture) {
  const bool is_part = is_text_part(family, architecture);
  const std::string type = is_part ? text_type_of(object) : object.text("model_type", "");
  const auto& types = family.model_types;
  if (type.empty() || std::find(types.begin(), types.end(), type) != types.end()) return;
  throw Error(
      ErrorCode::kUnsupported,
      fmt::format("{}: architectures says {}, {}model_type says '{}', want {}: transformers "
                  "goes by model_type, so correct whichever is wrong",
                  object.where(), architecture, is_part ? "text_config's " : "", type,
                  fmt::join(types, " or ")));
}

// The family of the first architecture that is known; says which that is.
const Family& choose_family(const ConfigObject& object, std::string& architecture) {
  refuse_lookalikes(object);
  const std::string text_type = text_type_of(object);
  for (const std::string& name : object.texts("architectures")) {
    if (const Family* family = find_family(name, text_type)) {
      check_model_type(object, *family, name);
      architecture = name;
      return *family;
    }
  }
  throw Error(ErrorCode::kUnsupported,
              fmt::format("{}: architectures: got {}, known are {}", object.where(),
                          object.json("architectures"), fmt::join(known_architectures(), ", ")));
}

void report_unknown_key(const ConfigObject& object, const Family& family, const std::string& key,
                        bool strict, std::vector<std::string>& warnings) {
  std::string message = fmt::format("{}: key '{}' is not known to family {} and is not used",
                                    object.where(), key, family.name);
  if (strict) throw Error(ErrorCode::kInvalidArgument, message);
  warnings.push_back(std::move(message));
}

// Unless it is one of `supported`.
void refuse_other_value(const ConfigObject& object, const std::string& key,
                        const std::vector<std::string_view>& supported) {
  const std::string value = object.json(key);
  if (std::find(supported.begin(), supported.end(), value) != supported.end()) return;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("{}: key '{}': got {}, only {} is supported", object.where(), key, value,
                          fmt::join(supported, " or ")));
}

// Sorts every key of the file into read, inert, neutral or unknown.
void check_config_keys(const ConfigObject& object, const Family& family, bool strict,
                       std::vector<std::string>& warnings) {
  for (const std::string& key : object.keys()) {
    if (takes_any_value(family, key)) continue;
    const std::vector<std::string_view> values = neutral_values(family, key);
    if (values.empty()) {
      report_unknown_key(object, family, key, strict, warnings);
    } else {
      refuse_other_value(object, key, values);
    }
  }
}

// Warns of keys of the object around a text_config that no family knows.
void warn_of_unknown_outer_keys(const ConfigObject& whole, const Family& family,
                                ParsedConfig& parsed) {
  if (!is_text_part(family, parsed.config.architecture)) return;
  const TextPart& part = *family.text_part;
  for (const std::string& key : whole.keys()) {
    const bool known =
        key == "text_config" || takes_any_value(family, key) ||
        std::find(part.inert_keys.begin(), part.inert_keys.end(), key) != part.inert_keys.end();
    if (known) continue;
    parsed.warnings.push_back(fmt::format("{}: key '{}' is not known to {} and is not used",
                                          whole.where(), key, parsed.config.architecture));
  }
}

// The object that describes the decoder: the file's own, or its text_config, which some keys of the
// whole model complete. Of the latter `config` gets the names of the whole model's tensors.
ConfigObject read_text_part(const ConfigObject& object, const Family& family, ModelConfig& config) {
  if (!is_text_part(family, config.architecture)) return object;
  const TextPart& part = *family.text_part;
  const ConfigObject inner = require_text_config(object);
  config.name_forms.assign(part.name_forms.begin(), part.name_forms.end());
  config.module_prefix = part.module_prefix;
  config.ignored_prefixes.assign(part.ignored_prefixes.begin(), part.ignored_prefixes.end());
  return inner;
}

void check_final_norm(const ConfigObject& object, const ModelConfig& config) {
  if (!(config.rms_norm_eps >= 0.0)) object.fail("rms_norm_eps must be >= 0");
}

void check_layers(const ConfigObject& object, const ModelConfig& config) {
  const LayerConfig* checked = nullptr;
  const auto check = [&](const LayerConfig& layer) {
    if (checked != nullptr && layer == *checked) return;
    checked = &layer;
    for (const Sublayer& sublayer : layer) {
      const std::string fault = sublayer.block.ops().find_config_fault(sublayer.block.config());
      if (!fault.empty()) object.fail(fault);
    }
  };
  for (const LayerConfig& layer : config.layers) check(layer);
  if (config.mtp_layer) check(*config.mtp_layer);
}

void check_parameter_count(const ConfigObject& object, const ModelConfig& config) {
  // Sizes are below 2^31 each; their products must stay countable, whatever the file claims.
  constexpr double kMostParameters = 1e13;
  double parameters =
      2.0 * static_cast<double>(config.hidden_size) * static_cast<double>(config.vocab_size);
  const LayerTable table(config);
  parameters += count_values(table.streams_rows()) + count_values(table.per_layer_rows());
  for (const LayerStack& stack : table.stacks()) {
    parameters += count_values(stack) * static_cast<double>(stack.size());
  }
  if (parameters > kMostParameters) {
    object.fail(fmt::format("the sizes ask for {:.3g} parameters, at most {:.0g} are supported",
                            parameters, kMostParameters));
  }
}

}  // namespace

int ModelConfig::ensure_rope(const RopeSpec& rope) {
  const auto found = std::find(ropes.begin(), ropes.end(), rope);
  if (found != ropes.end()) return static_cast<int>(found - ropes.begin());
  ropes.push_back(rope);
  return static_cast<int>(ropes.size()) - 1;
}

void plan_positions(ModelConfig& config, int64_t longest) {
  config.most_positions = INT64_MAX;
  for (RopeSpec& rope : config.ropes) {
    rope.config.uses_long_factors =
        rope.config.type == RopeType::kLongrope &&
        static_cast<double>(longest) > rope.config.original_max_position_embeddings;
    config.most_positions =
        std::min(config.most_positions, rope.config.most_positions().value_or(INT64_MAX));
  }
}

ParsedConfig parse_config(const std::string& text, const std::string& where, bool strict) {
  const ConfigObject object = ConfigObject::parse(text, where);
  ParsedConfig parsed;
  const Family& family = choose_family(object, parsed.config.architecture);
  parsed.config.family = family.name;
  const ConfigObject text_object = read_text_part(object, family, parsed.config);
  warn_of_unknown_outer_keys(object, family, parsed);
  check_config_keys(text_object, family, strict, parsed.warnings);
  const DecoderKeys keys = read_decoder_keys(text_object, family.defaults, parsed.config);
  if (family.find_warnings != nullptr) {
    for (std::string& warning : family.find_warnings(text_object))
      parsed.warnings.push_back(std::move(warning));
  }
  family.read(text_object, keys, parsed.config);
  plan_positions(parsed.config, 0);
  check_final_norm(object, parsed.config);
  check_layers(object, parsed.config);
  check_parameter_count(object, parsed.config);
  return parsed;
}

ParsedConfig read_config(const ModelTexts& texts, bool strict) {
  constexpr int64_t kMaxBytes = 16 << 20;
  constexpr std::string_view kName = "config.json";
  constexpr std::string_view kModelOpt = "hf_quant_config.json";
  const std::optional<std::string> modelopt = texts.find(kModelOpt, kMaxBytes);
  if (modelopt) check_modelopt_file(*modelopt, texts.where(kModelOpt));
  return parse_config(texts.read(kName, kMaxBytes), texts.where(kName), strict);
}

ParsedConfig load_config(const std::string& path, bool strict) {
  return read_config(open_texts(path), strict);
}

}  // namespace strata::model
