// SPDX-License-Identifier: Apache-2.0
// What the tensors of one checkpoint are called, of the forms that its family's files may have, and
// whether a model that is said to be tied has a head of its own there.
#pragma once
#include <string>

#include "checkpoint/source.h"
#include "model/config.h"

namespace strata::model {

// A canonical name as the form has it.
std::string in_form(const NameForm& form, const std::string& name);

// The form in which the checkpoint has embedding and head, else the embedding, else (as a tied
// model may store it) the head; where it has none of them, the first.
const NameForm& form_of(const CheckpointSource& checkpoint, const ModelConfig& config);

// tie_word_embeddings counts only where the checkpoint bears it out: beside an embedding, a head of
// other values is the model's, as in transformers. Clears it then, and adds a warning.
void untie_stored_head(const CheckpointSource& checkpoint, ParsedConfig& parsed);

}  // namespace strata::model
