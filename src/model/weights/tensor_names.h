// SPDX-License-Identifier: Apache-2.0
// What the tensors of one checkpoint are called, of the forms that its family's files may have,
// which of them are none of the model's, and whether a model that is said to be tied has a head of
// its own there.
#pragma once
#include <string>
#include <string_view>

#include "checkpoint/source.h"
#include "model/config.h"

namespace strata::model {

// Canonical names of the embedding and of the head.
inline constexpr const char* kEmbeddingName = "model.embed_tokens.weight";
inline constexpr const char* kHeadName = "lm_head.weight";

// A canonical name as the form has it.
std::string name_in_form(const NameForm& form, const std::string& name);

// The form in which the checkpoint has embedding and head, else the embedding, else (as a tied
// model may store it) the head; where it has none of them, the first.
const NameForm& find_name_form(const CheckpointSource& checkpoint, const ModelConfig& config);

// Whether its layer is not computed, or it has an ignored suffix, or is a tied model's head.
bool is_unused_tensor(const ModelConfig& config, std::string_view name);
// Whether it is of another modality: it takes no part, and stays in files that are saved.
bool is_of_another_modality(const ModelConfig& config, std::string_view name);

// tie_word_embeddings counts only where the checkpoint bears it out: next to an embedding, a head
// of other values is the model's, as in transformers. Clears it then, and adds a warning.
void verify_weight_tying(const CheckpointSource& checkpoint, ParsedConfig& parsed);

}  // namespace strata::model
