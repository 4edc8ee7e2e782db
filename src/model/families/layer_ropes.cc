// SPDX-License-Identifier: Apache-2.0
#include "model/families/layer_ropes.h"

#include <fmt/format.h>

namespace strata::model {
namespace {

constexpr std::string_view kFull = "full_attention";
constexpr std::string_view kSliding = "sliding_attention";
constexpr std::string_view kTruncate = "truncate";

RopeConfig read_kind(const ConfigObject& object, const ConfigObject& settings, double theta,
                     RopeDefaults defaults = {}) {
  const auto parameters = object.object("rope_parameters");
  defaults.theta = theta;
  defaults.truncate = !parameters || parameters->boolean(kTruncate, true);
  return read_rope_scaling(object, settings, defaults);
}

void check_layer_kind_keys(const ConfigObject& object, const ConfigObject& parameters) {
  for (const std::string& key : parameters.keys()) {
    if (key == kFull || key == kSliding || key == kTruncate) continue;
    object.fail(
        fmt::format("rope_parameters: key '{}': want '{}' and '{}', which hold the settings", key,
                    kFull, kSliding));
  }
}

}  // namespace

RopeConfig read_older_full_rope(const ConfigObject& object, double theta) {
  if (const auto scaling = object.object("rope_scaling")) return read_kind(object, *scaling, theta);
  RopeConfig plain;
  plain.theta = theta;
  return plain;
}

LayerRopes read_layer_ropes(const ConfigObject& object, const LayerRopes& old_form,
                            const RopeDefaults& defaults) {
  const auto parameters = object.object("rope_parameters");
  if (!parameters) return old_form;
  check_layer_kind_keys(object, *parameters);
  const auto one = [&](std::string_view type, const RopeConfig& otherwise) {
    const auto inner = parameters->object(type);
    return inner ? read_kind(object, *inner, otherwise.theta, defaults) : otherwise;
  };
  return {.full = one(kFull, old_form.full), .sliding = one(kSliding, old_form.sliding)};
}

}  // namespace strata::model
