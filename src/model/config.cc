#include "model/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "model/config_object.h"
#include "model/family.h"

namespace strata::model {
namespace {

bool contains(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

const Family& family_of(const ConfigObject& object, std::string& architecture) {
  std::vector<std::string_view> known;
  for (const Family* family : families()) {
    known.insert(known.end(), family->architectures.begin(), family->architectures.end());
  }
  for (const std::string& name : object.texts("architectures")) {
    if (const Family* family = find_family(name)) {
      architecture = name;
      return *family;
    }
  }
  throw Error(ErrorCode::kUnsupported,
              fmt::format("{}: architectures: got {}, known are {}", object.where(),
                          object.json("architectures"), fmt::join(known, ", ")));
}

// Sorts every key of the file into read, inert, neutral or unknown.
void check_keys(const ConfigObject& object, const Family& family, bool strict,
                std::vector<std::string>& warnings) {
  for (const std::string& key : object.keys()) {
    if (contains(family.read_keys, key) || contains(family.inert_keys, key)) continue;
    const auto neutral = std::find_if(family.neutral_keys.begin(), family.neutral_keys.end(),
                                      [&](const NeutralKey& item) { return item.key == key; });
    if (neutral == family.neutral_keys.end()) {
      std::string message = fmt::format("{}: key '{}' is not known to family {} and is not used",
                                        object.where(), key, family.name);
      if (strict) throw Error(ErrorCode::kInvalidArgument, message);
      warnings.push_back(std::move(message));
    } else if (object.json(key) != neutral->value) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("{}: key '{}': got {}, only {} is supported", object.where(), key,
                              object.json(key), neutral->value));
    }
  }
}

void check_shapes(const ConfigObject& object, const ModelConfig& config) {
  const auto fail = [&](const std::string& what) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: {}", object.where(), what));
  };
  if (config.num_heads % config.num_kv_heads != 0) {
    fail(fmt::format("num_attention_heads {} is not a multiple of num_key_value_heads {}",
                     config.num_heads, config.num_kv_heads));
  }
  if (config.head_dim < 2 || config.head_dim % 2 != 0 || config.head_dim > 1024) {
    fail(fmt::format(
        "head_dim {} must be even, from 2 to 1024 (hidden_size / num_attention_heads unless given)",
        config.head_dim));
  }
  if (!(config.rms_norm_eps >= 0.0)) fail("rms_norm_eps must be >= 0");
  // Sizes are below 2^31 each; their products must stay countable, whatever the file claims.
  constexpr double kMostParameters = 1e13;
  const auto d = static_cast<double>(config.hidden_size);
  const double attention = 2.0 * d * static_cast<double>(config.q_width() + config.kv_width());
  const double mlp = 3.0 * d * static_cast<double>(config.intermediate_size);
  const double parameters = 2.0 * d * static_cast<double>(config.vocab_size) +
                            static_cast<double>(config.num_layers) * (attention + mlp);
  if (parameters > kMostParameters) {
    fail(fmt::format("the sizes ask for {:.3g} parameters, at most {:.0g} are supported",
                     parameters, kMostParameters));
  }
}

}  // namespace

float ModelConfig::attention_scale() const {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
}

ParsedConfig parse_config(const std::string& text, const std::string& where, bool strict) {
  const ConfigObject object = ConfigObject::parse(text, where);
  ParsedConfig parsed;
  const Family& family = family_of(object, parsed.config.architecture);
  parsed.config.family = family.name;
  check_keys(object, family, strict, parsed.warnings);
  read_common(object, parsed.config);
  family.read(object, parsed.config);
  check_shapes(object, parsed.config);
  return parsed;
}

// Source: HF modeling_rope_utils.py, _compute_default_rope_parameters,
// _compute_linear_scaling_rope_parameters, _compute_llama3_parameters.
std::vector<double> rope_frequencies(const RopeConfig& rope, int64_t head_dim) {
  std::vector<double> frequencies(static_cast<size_t>(head_dim / 2));
  for (int64_t pair = 0; pair < head_dim / 2; ++pair) {
    double frequency =
        std::pow(rope.theta, -2.0 * static_cast<double>(pair) / static_cast<double>(head_dim));
    if (rope.type == RopeType::kLinear) frequency /= rope.factor;
    if (rope.type == RopeType::kLlama3) {
      const double wavelength = 2.0 * std::numbers::pi / frequency;
      const double original = rope.original_max_position_embeddings;
      if (wavelength > original / rope.low_freq_factor) {
        frequency /= rope.factor;
      } else if (wavelength >= original / rope.high_freq_factor) {
        const double smooth = (original / wavelength - rope.low_freq_factor) /
                              (rope.high_freq_factor - rope.low_freq_factor);
        frequency = (1.0 - smooth) * frequency / rope.factor + smooth * frequency;
      }
    }
    frequencies[static_cast<size_t>(pair)] = frequency;
  }
  return frequencies;
}

}  // namespace strata::model
