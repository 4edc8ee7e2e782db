// SPDX-License-Identifier: Apache-2.0
// Records of turns (own_form.h) as conversations and as text whose trained bytes are known. What is
// trained is the render of the whole conversation by the template that serves the model.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/answer_spans.h"
#include "data/own_form.h"
#include "text/chat_template.h"

namespace strata::data {

// Which answers of a conversation are trained.
enum class TrainOn { kLast, kAll };

struct ReadConversation {
  Conversation conversation;
  std::vector<bool> is_marked_out;  // by message: its marks say that it is not trained on
};

// Throws Error that names the field. The last turn must be an answer.
ReadConversation read_conversation(const boost::json::object& own, const OwnRecord& record,
                                   const text::ConversationForm& form);

// Reads a record (data/record_reader.h) as a conversation: nothing where it is no chat. `own` gets
// the turns as they stand in the record.
std::optional<ReadConversation> parse_conversation(std::string_view record, bool has_template,
                                                   const text::ConversationForm& form,
                                                   boost::json::object& own);

struct ChatText {
  text::RenderedChat rendered;
  std::vector<Target> targets;
  int64_t num_marked_out = 0;               // answers that would be trained but for their marks
  std::vector<std::string> not_found = {};  // what is said of each answer that is left out
};

// No turn before `first` is trained. Throws Error where the template refuses the conversation.
ChatText render_answers(const ReadConversation& read, size_t first, TrainOn train_on,
                        Renderer render);

}  // namespace strata::data
