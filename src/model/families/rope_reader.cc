// SPDX-License-Identifier: Apache-2.0
// RoPE as files have it: in the form of transformers 4 and of transformers 5 (family.h).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "model/families/family.h"

namespace strata::model {
namespace {

constexpr std::string_view kOriginalLength = "original_max_position_embeddings";

bool contains(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

RopeType parse_longrope_type(const ConfigObject& object, const std::string& name) {
  if (name == "default") return RopeType::kDefault;
  if (name == "longrope" || name == "su" || name == "yarn") return RopeType::kLongrope;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("{}: rope type: got '{}', supported are default and longrope (su and "
                          "yarn in older files)",
                          object.where(), name));
}

RopeType parse_rope_type(const ConfigObject& object, const std::string& name) {
  if (name == "default") return RopeType::kDefault;
  if (name == "linear") return RopeType::kLinear;
  if (name == "llama3") return RopeType::kLlama3;
  if (name == "yarn") return RopeType::kYarn;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("{}: rope type: got '{}', supported are default, linear, llama3 and yarn",
                          object.where(), name));
}

// A null or zero setting counts as absent, as it does for Hugging Face.
void read_nonzero(const ConfigObject& scaling, std::string_view key, double& value) {
  const double read = scaling.number(key, 0.0);
  if (!(read >= 0.0) || !std::isfinite(read)) {
    scaling.fail(fmt::format("key '{}': got {}, want at least 0", key, scaling.json(key)));
  }
  if (read != 0.0) value = read;
}

void read_yarn(const ConfigObject& scaling, RopeConfig& rope) {
  read_nonzero(scaling, "beta_fast", rope.beta_fast);
  read_nonzero(scaling, "beta_slow", rope.beta_slow);
  read_nonzero(scaling, "mscale", rope.mscale);
  read_nonzero(scaling, "mscale_all_dim", rope.mscale_all_dim);
  // A factor of zero counts too.
  double factor = 0.0;
  read_nonzero(scaling, "attention_factor", factor);
  if (scaling.has("attention_factor")) rope.attention_factor = factor;
  rope.truncate = scaling.boolean("truncate", true);
  if (!(rope.theta > 1.0))
    scaling.fail(fmt::format("rope_theta is {}, yarn wants > 1", rope.theta));
}

void check_scaling_keys(const ConfigObject& scaling, RopeType type, const RopeDefaults& defaults) {
  constexpr std::string_view kKnown[] = {"type",
                                         "rope_type",
                                         "rope_theta",
                                         "factor",
                                         "low_freq_factor",
                                         "high_freq_factor",
                                         "original_max_position_embeddings",
                                         "partial_rotary_factor"};
  // `finetuned` says how a model came to be, not what it is.
  constexpr std::string_view kYarn[] = {"beta_fast",      "beta_slow",        "truncate", "mscale",
                                        "mscale_all_dim", "attention_factor", "finetuned"};
  constexpr std::string_view kSections[] = {"mrope_section", "mrope_interleaved"};
  constexpr std::string_view kPositions[] = {"llama_4_scaling_beta", "max_position_embeddings"};
  // transformers reads neither of the last two.
  constexpr std::string_view kLongrope[] = {"short_factor", "long_factor", "attention_factor",
                                            "short_mscale", "long_mscale"};
  for (const std::string& key : scaling.keys()) {
    const bool known = contains(kKnown, key) || (type == RopeType::kYarn && contains(kYarn, key)) ||
                       (defaults.has_sections && contains(kSections, key)) ||
                       (defaults.scales_positions && contains(kPositions, key)) ||
                       (type == RopeType::kLongrope && contains(kLongrope, key));
    if (!known) scaling.fail(fmt::format("key '{}' is not supported", key));
  }
}

RopeType read_rope_type(const ConfigObject& scaling, const RopeDefaults& defaults) {
  const auto parse = [&](const ConfigObject& object, const std::string& name) {
    if (defaults.has_proportional && name == "proportional") return RopeType::kProportional;
    return defaults.has_longrope ? parse_longrope_type(object, name)
                                 : parse_rope_type(object, name);
  };
  if (scaling.has("type") && scaling.has("rope_type") &&
      scaling.text("type") != scaling.text("rope_type") &&
      parse(scaling, scaling.text("type")) != parse(scaling, scaling.text("rope_type"))) {
    scaling.fail(fmt::format("'type' {} and 'rope_type' {} disagree", scaling.json("type"),
                             scaling.json("rope_type")));
  }
  return parse(scaling, scaling.text("rope_type", scaling.text("type", "default")));
}

void check_scaling_values(const ConfigObject& scaling, const RopeConfig& rope) {
  for (const double value : {rope.theta, rope.factor, rope.low_freq_factor, rope.high_freq_factor,
                             rope.original_max_position_embeddings}) {
    if (!(value > 0.0) || !std::isfinite(value)) {
      scaling.fail(fmt::format("a rope setting is {}, want more than 0", value));
    }
  }
  if (rope.type == RopeType::kLlama3 && rope.high_freq_factor < rope.low_freq_factor) {
    scaling.fail("high_freq_factor must not be below low_freq_factor");
  }
}

// The factor of a scaling; where YaRN's is null, or longrope has none, what stretches the original
// length to the whole.
double read_scaling_factor(const ConfigObject& scaling, const RopeConfig& rope,
                           double max_positions) {
  if ((rope.type == RopeType::kYarn && scaling.is_null("factor")) ||
      (rope.type == RopeType::kLongrope && !scaling.has("factor"))) {
    return max_positions / rope.original_max_position_embeddings;
  }
  if (rope.type == RopeType::kProportional) return scaling.number("factor", 1.0);
  return scaling.number("factor");
}

// Into `rope`, what longrope alone has.
void read_longrope(const ConfigObject& scaling, RopeConfig& rope) {
  if (scaling.has("attention_factor")) {
    rope.attention_factor = scaling.number("attention_factor");
    if (!(*rope.attention_factor >= 0.0) || !std::isfinite(*rope.attention_factor)) {
      scaling.fail(fmt::format("key 'attention_factor': got {}, want at least 0",
                               scaling.json("attention_factor")));
    }
  } else if (rope.factor > 1.0 && !(rope.original_max_position_embeddings > 1.0)) {
    scaling.fail("original_max_position_embeddings is 1, of which no attention_factor follows");
  }
  rope.short_factors = scaling.numbers("short_factor");
  rope.long_factors = scaling.numbers("long_factor");
  for (const auto& factors : {rope.short_factors, rope.long_factors}) {
    for (const double factor : factors) {
      if (factor > 0.0 && std::isfinite(factor)) continue;
      scaling.fail(fmt::format("short_factor and long_factor: got {}, want more than 0", factor));
    }
  }
}

}  // namespace

double read_partial_rotary(const ConfigObject& object, const RopeDefaults& defaults) {
  const double factor = object.number("partial_rotary_factor", defaults.partial_rotary_factor);
  if (factor == 1.0 || (defaults.is_partial && factor > 0.0 && factor < 1.0)) return factor;
  object.fail(fmt::format(
      "key 'partial_rotary_factor': got {}, {}", object.json("partial_rotary_factor"),
      defaults.is_partial ? "want more than 0 and at most 1" : "only 1.0 is supported"));
}

RopeConfig read_rope_scaling(const ConfigObject& object, const ConfigObject& scaling,
                             const RopeDefaults& defaults) {
  const double max_positions = object.number("max_position_embeddings", 2048);
  RopeConfig rope;
  rope.type = read_rope_type(scaling, defaults);
  rope.theta = scaling.number("rope_theta", defaults.theta);
  if (rope.type == RopeType::kLlama3 || rope.type == RopeType::kYarn ||
      rope.type == RopeType::kLongrope) {
    rope.original_max_position_embeddings =
        defaults.original_length.value_or(scaling.number(kOriginalLength, max_positions));
  }
  if (rope.type != RopeType::kDefault) {
    rope.factor = read_scaling_factor(scaling, rope, max_positions);
  }
  if (rope.type == RopeType::kLlama3) {
    rope.low_freq_factor = scaling.number("low_freq_factor");
    rope.high_freq_factor = scaling.number("high_freq_factor");
  }
  if (rope.type == RopeType::kYarn) {
    read_yarn(scaling, rope);
    rope.truncate = defaults.truncate.value_or(rope.truncate);
  }
  if (rope.type == RopeType::kLongrope) read_longrope(scaling, rope);
  check_scaling_keys(scaling, rope.type, defaults);
  rope.partial_rotary_factor = read_partial_rotary(scaling, defaults);
  check_scaling_values(scaling, rope);
  return rope;
}

namespace {

// Without a scaling.
RopeConfig make_plain_rope(const ConfigObject& object, const RopeDefaults& settings) {
  RopeConfig rope;
  rope.theta = settings.theta;
  rope.partial_rotary_factor = settings.partial_rotary_factor;
  if (!(rope.theta > 0.0) || !std::isfinite(rope.theta)) {
    object.fail("rope_theta must be more than 0");
  }
  return rope;
}

}  // namespace

RopeConfig read_rope(const ConfigObject& object, const RopeDefaults& defaults) {
  // The keys outside stand in for those that are missing inside.
  RopeDefaults outer = defaults;
  const double theta = outer.theta = object.number("rope_theta", defaults.theta);
  outer.partial_rotary_factor = read_partial_rotary(object, defaults);
  const auto old_form = object.object("rope_scaling");
  const auto new_form = object.object("rope_parameters");
  if (object.has(kOriginalLength)) {
    outer.original_length = static_cast<double>(read_size(object, kOriginalLength));
  }
  const auto read_form = [&](const ConfigObject& form) {
    return read_rope_scaling(object, form, outer);
  };
  if (!new_form) return old_form ? read_form(*old_form) : make_plain_rope(object, outer);
  const RopeConfig rope = read_form(*new_form);
  if (object.has("rope_theta") && theta != rope.theta) {
    fail_disagreement(object, "rope_theta", "rope_parameters");
  }
  outer.theta = rope.theta;
  outer.partial_rotary_factor = rope.partial_rotary_factor;
  if (old_form && !(read_form(*old_form) == rope)) {
    fail_disagreement(object, "rope_scaling", "rope_parameters");
  }
  return rope;
}

}  // namespace strata::model
