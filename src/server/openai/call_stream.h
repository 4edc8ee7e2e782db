// SPDX-License-Identifier: Apache-2.0
// CallStream: one call of a tool while it is written, between its marks. Once its name and the
// beginning of its arguments stand there it is a call, and its arguments are what follows, as it
// comes: an object's text as the model writes it, or the members that are whole of one whose values
// are written one by one. What never becomes certain is read as a whole (CallForm::read). Borrows
// form and types. One thread. What is pushed is looked at once; a head of up to 4 KiB, and a value
// that is written by itself, anew with each piece until it is whole.
//   CallStream call(form, types);  call.push(text);  if (call.is_known())
//   send(call.take());
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "server/openai/tool_call.h"

namespace strata::server {

class CallStream {
 public:
  CallStream(const CallForm& form, const ToolTypes& types) : form_(form), types_(types) {}

  void push(std::string_view text);
  // No more comes: what the arguments lack that is not the model's to write.
  void finish();
  [[nodiscard]] bool is_known() const { return head_.state == CallHead::State::kKnown; }
  [[nodiscard]] const std::string& name() const { return head_.name; }
  // The part of the arguments that take() has not given yet.
  std::string take() { return std::exchange(arguments_, {}); }
  // The whole call was written, and so many bytes behind it.
  [[nodiscard]] bool has_ended() const { return has_ended_; }
  [[nodiscard]] size_t num_behind() const { return num_behind_; }

 private:
  void read_head();
  void read_object(std::string_view text);
  bool scan_char_for_end(char c);
  void scan_string_char(char c);
  void read_parameters(bool is_last);

  const CallForm& form_;
  const ToolTypes& types_;
  CallHead head_;
  std::string text_;  // before the arguments; of parameters, what is not whole yet
  std::string arguments_;
  bool has_parameter_ = false;
  // Where in the JSON of an object the text stands.
  int64_t depth_ = 0;
  bool in_string_ = false, is_escaped_ = false;
  bool is_whole_ = false;  // the arguments
  bool has_ended_ = false;
  size_t num_behind_ = 0;
};

}  // namespace strata::server
