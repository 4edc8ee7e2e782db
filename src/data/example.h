// SPDX-License-Identifier: Apache-2.0
// Example: one training sequence, made of one JSONL line. Tokens are those of encoding the whole
// text once; what is trained is decided by byte offsets: a token is trained when at least one of
// its bytes belongs to a target.
//   {"prompt": "...", "completion": "..."}  loss on the completion and the end token
//   {"text": "..."}                         loss on all
//   {"messages": [...], "tools": [...]}     loss on answers (data/answer_spans.h)
// prompt/completion and text get what the tokenizer's post-processor adds (a begin token), and the
// end token unless they end with one already. messages get neither: the template writes them.
// Records of other forms (data/form.h) become one of these first. Other fields are ignored.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/chat_example.h"
#include "data/end_tokens.h"
#include "data/form.h"
#include "text/tokenizer/tokenizer.h"

namespace strata::data {

struct Example {
  std::vector<int32_t> tokens;   // [n] what the model reads: all but the last token of the text
  std::vector<int32_t> targets;  // [n] targets[t] is the token after tokens[t]
  std::vector<float> weights;    // [n] 1 where the target is trained, else 0
  int64_t num_trained = 0;       // sum of weights, >= 1
};

struct ExampleContext {
  const text::Tokenizer& tokenizer;
  const EndTokens& end_tokens;
  Renderer render;
  TrainOn train_on = TrainOn::kLast;
  bool has_template = true;          // of chats; without one Alpaca's records become texts
  text::ConversationForm form = {};  // as the template wants conversations
  // Counts texts that begin with what the tokenizer adds, which is there once then; may be null.
  int64_t* num_doubled_starts = nullptr;
};

struct ReadRecord {
  Form form = Form::kText;
  Example example;  // of a preference pair the chosen answer's
  std::optional<Example> rejected = {};
  bool is_tie = false;         // of a pair: its scores say that neither answer is better
  bool is_left_out = false;    // its marks (data/training_marks.h) leave nothing to train on
  int64_t num_marked_out = 0;  // answers that would be trained on but for their marks
  std::vector<std::string> not_found = {};  // answers that are left out, and why
  bool has_read_clock = false;              // the template wrote a date that nobody gave
};

// Any record, pairs too. Throws as make_example.
ReadRecord read_record(std::string_view text, const ExampleContext& context,
                       std::vector<std::string>& ignored);

// Makes the example of a record that is no pair; a preference pair is refused by name.
// Throws Error{kInvalidArgument} that names field, got and wanted; the caller adds file and line.
// Names of ignored fields are added to `ignored` when they are not there yet.
Example make_example(std::string_view line, const ExampleContext& context,
                     std::vector<std::string>& ignored);

// Throw Error where it is a preference pair, and where it is none.
void refuse_pair(const ReadRecord& record);
void require_pair(const ReadRecord& record);

}  // namespace strata::data
