// SPDX-License-Identifier: Apache-2.0
// The JSON body of forward_backward and forward (tinker before 0.25, curl) as the message that a
// binary body is, so that everything behind it is shared:
//   {model_id, seq_id, forward_backward_input: {data: [{model_input, loss_fn_inputs}], loss_fn,
//    loss_fn_config}}
// Numbers are rounded once, to the type that the tensor names; nothing is allocated from a declared
// size.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "server/tinker/protocol/data_message.h"
#include "text/json_body.h"

namespace strata::server {

// Adds the data, the loss and its options. `input` is the field that holds them. Throws Error for
// wrong types and for numbers that do not fit; shapes, names and values are checked later.
void read_json_data(const text::Fields& body, std::string_view input, DataMessage& message);

// A ModelInput, {chunks: [{type, tokens}]}, as its token ids. Throws Error for a token outside min
// to max, and for chunks that are not text.
std::vector<int32_t> read_model_input(const text::Fields& input, int32_t min, int32_t max);

}  // namespace strata::server
