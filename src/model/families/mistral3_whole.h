// SPDX-License-Identifier: Apache-2.0
// The multimodal checkpoints of Mistral 3, whose text part is of one of two families: Mistral
// (Small 3.1, 3.2) or Ministral 3. Source: HF modeling_mistral3.py, configuration_mistral3.py.
#pragma once
#include "model/families/family.h"

namespace strata::model {

inline constexpr std::string_view kMistral3Architectures[] = {"Mistral3ForConditionalGeneration"};
inline constexpr std::string_view kMistral3Inert[] = {
    "vision_config",        "image_token_index",    "image_token_id",
    "projector_hidden_act", "vision_feature_layer", "multimodal_projector_bias",
    "spatial_merge_size"};
// What the hub has, and what transformers 5 can write.
inline constexpr NameForm kMistral3NameForms[] = {
    {"language_model.model.", "language_model.lm_head."}, {"model.language_model.", "lm_head."}};
inline constexpr std::string_view kMistral3Vision[] = {"vision_tower.", "multi_modal_projector."};

constexpr TextPart make_mistral3_text_part(std::string_view model_type) {
  return {.architectures = kMistral3Architectures,
          .inert_keys = kMistral3Inert,
          .name_forms = kMistral3NameForms,
          .module_prefix = "model.language_model.",
          .ignored_prefixes = kMistral3Vision,
          .model_type = model_type};
}

}  // namespace strata::model
