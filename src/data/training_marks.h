// SPDX-License-Identifier: Apache-2.0
// Members of a record or of a message that say whether it is trained on, as other trainers' data
// have them: weight (OpenAI's, 0 or 1), train, training, trainable and loss (axolotl's and
// ms-swift's), masked and ignore (the other way round), and label and kto_tag (of preferences).
#pragma once
#include <string_view>
#include <vector>

#include "text/json_body.h"

namespace strata::data {

// Whether a message of that role is trained on, as far as it says. Throws FieldFault for another
// value, for marks that say more than yes or no, and for one that asks for more than an answer.
bool is_message_trained(const text::Fields& message, std::string_view role);
// The same of a record. A text's label is its class where it is no boolean, and says nothing.
bool is_record_trained(const text::Fields& record);
// The names that is_record_trained() reads.
const std::vector<std::string_view>& record_mark_names();

}  // namespace strata::data
