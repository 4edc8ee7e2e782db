// SPDX-License-Identifier: Apache-2.0
// AnswerParser: the text of an answer, as it comes, divided into reasoning, content and calls of
// tools. What it gives is final; what may yet turn out to be a mark or a call waits. A call is
// given from when its name and the beginning of its arguments are there (CallStream), and its
// arguments as they come; text that looks like a call and never has those is content. Borrows the
// form and the types. One thread.
//   AnswerParser parser(form_of(chat), {.in_reasoning = true, .types = &types});
//   send(parser.push(piece)); ... send(parser.finish());
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/openai/call_stream.h"
#include "server/openai/tool_call.h"
#include "text/harmony_reader.h"

namespace strata::server {

// How the answers of a model are written.
struct AnswerForm {
  const CallForm* calls = nullptr;  // null: it calls no tools
  std::string_view think,
      think_end;                      // around reasoning, with which an answer may begin; or empty
  std::string_view think_token = {};  // that `think` begins with, where it is not one token
  size_t id_length = 0;               // of a call's id, as the template wants it; 0: any
  bool has_channels = false;  // messages with headers (HarmonyReader); the others are empty then
  // Whether tools can be called in it.
  [[nodiscard]] bool writes_calls() const { return calls != nullptr || has_channels; }
  // Marks that are text to the parser, should the vocabulary have them as special tokens.
  [[nodiscard]] std::vector<std::string_view> marks() const;
};
AnswerForm answer_form_of(const text::ChatTemplate& chat);

using text::AnswerPiece;
using text::append_call_pieces;

struct AnswerReading {
  bool in_reasoning = false;         // the prompt ended with the mark
  const ToolTypes* types = nullptr;  // null: calls are text
  int64_t most_calls = INT64_MAX;    // what follows the last of them is dropped
};

class AnswerParser {
 public:
  AnswerParser(const AnswerForm& form, const AnswerReading& reading);

  AnswerPiece push(std::string_view text);
  // No more comes.
  AnswerPiece finish();
  [[nodiscard]] int64_t num_calls() const { return harmony_ ? harmony_->num_calls() : num_calls_; }
  // Nothing that may follow will be given.
  [[nodiscard]] bool is_done() const { return num_calls() >= reading_.most_calls; }

 private:
  enum class State : uint8_t { kStart, kReasoning, kContent, kCall };
  [[nodiscard]] bool reads_calls() const {
    return form_.calls != nullptr && reading_.types != nullptr;
  }
  bool parse_step(AnswerPiece& out, bool is_last);
  // Finds out whether the answer begins with reasoning; false while it may be either.
  bool recognize_reasoning(bool is_last);
  bool read_reasoning(AnswerPiece& out, bool is_last);
  bool read_content(AnswerPiece& out, bool is_last);
  bool read_content_up_to_mark(AnswerPiece& out, bool is_last);
  [[nodiscard]] std::string_view call_end_mark() const;
  size_t search_call_end();
  bool read_call(AnswerPiece& out, bool is_last);
  void stream_call_up_to(size_t end);
  void read_whole_call(AnswerPiece& out, size_t size, bool is_marked);
  bool read_known_call(AnswerPiece& out, size_t close, bool is_last);
  void erase_separator_of_calls();
  bool recognize_call(bool is_last);
  [[nodiscard]] bool ends_by_itself() const;
  [[nodiscard]] size_t size_of_known_call(size_t close) const;
  void append_streamed_arguments(AnswerPiece& out);
  void end_streamed_call();
  void reset_call_state();
  void append_reasoning(AnswerPiece& out, std::string_view text);
  [[nodiscard]] std::string_view without_space_of_form(std::string_view text) const;
  void append_but_trailing_space(AnswerPiece& out, std::string_view text);
  void append_content(AnswerPiece& out, std::string_view text);
  // Appends the calls, or the text as it stood where they cannot be read.
  void append_parsed_calls(AnswerPiece& out, std::string_view inner, std::string_view close);

  const AnswerForm form_;
  const AnswerReading reading_;
  std::optional<text::HarmonyReader> harmony_;
  State state_ = State::kStart;
  std::string held_;
  std::string space_;                 // behind content, dropped where a call follows
  size_t searched_ = 0;               // of held_, for the end of a call
  std::optional<CallStream> stream_;  // the call that is being written
  size_t streamed_ = 0;               // of held_, to stream_
  bool is_told_ = false;              // its name
  bool drops_space_ = false;          // before the next content
  bool has_content_ = false;
  int64_t num_calls_ = 0;
};

// Whether what is rendered for an answer ends inside its reasoning.
bool ends_in_reasoning(const AnswerForm& form, std::string_view prompt);

}  // namespace strata::server
