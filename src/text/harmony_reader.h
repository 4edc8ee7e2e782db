// SPDX-License-Identifier: Apache-2.0
// HarmonyReader: answers of gpt-oss, which are messages with a header each:
//   <|channel|>analysis<|message|>TEXT<|end|>                      reasoning
//   <|start|>assistant to=functions.NAME<|channel|>commentary json<|message|>{...}<|call|>
//   <|start|>assistant<|channel|>final<|message|>TEXT<|return|>    content
// The prompt ends with <|start|>assistant. A recipient may stand before or behind the channel; what
// goes to another recipient than a function, and a channel of another name, is content; so is an
// answer that begins with no header at all. A call's arguments are given as they come. One thread.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/answer_piece.h"
#include "text/chat_template.h"

namespace strata::text {

// Whether a template's answers are such messages.
bool writes_harmony(const ChatTemplate& chat);
// What is text to the reader, should the vocabulary have it as special tokens.
std::vector<std::string_view> harmony_marks();

class HarmonyReader {
 public:
  // `reads_calls`: else calls are content. Behind the last of `most_calls` nothing is given.
  HarmonyReader(bool reads_calls, int64_t most_calls)
      : reads_calls_(reads_calls), most_calls_(most_calls) {}

  void push(std::string_view text, AnswerPiece& out);
  // No more comes.
  void finish(AnswerPiece& out);
  [[nodiscard]] int64_t num_calls() const { return num_calls_; }

 private:
  enum class State : uint8_t { kHeader, kReasoning, kContent, kCall };
  bool read_step(AnswerPiece& out, bool is_last);
  bool read_header(bool is_last);
  void begin_message(std::string_view header);
  bool read_body(AnswerPiece& out, bool is_last);
  void append(std::string_view text, AnswerPiece& out);
  void append_to_call(std::string_view text, AnswerPiece& out);
  [[nodiscard]] bool is_done() const { return num_calls_ >= most_calls_; }

  const bool reads_calls_;
  const int64_t most_calls_;
  State state_ = State::kHeader;
  bool is_first_ = true;  // of the messages
  std::string held_;
  std::string function_;  // of a call that is being read
  bool is_told_ = false;  // its name
  int64_t num_calls_ = 0;
};

}  // namespace strata::text
