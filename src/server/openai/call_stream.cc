// SPDX-License-Identifier: Apache-2.0
#include "server/openai/call_stream.h"

#include "server/http/message.h"

namespace strata::server {
namespace {

constexpr size_t kLongestHead = 4096;

}  // namespace

void CallStream::push(std::string_view text) {
  if (is_known() && head_.next == nullptr) return read_object(text);
  if (head_.state == CallHead::State::kNone) return;
  text_ += text;
  if (head_.state == CallHead::State::kNotYet) read_head();
  if (!is_known()) return;
  if (head_.next != nullptr) return read_parameters(/*is_last=*/false);
  const std::string begun = std::exchange(text_, {});
  read_object(begun);
}

void CallStream::finish() {
  if (!is_known() || head_.next == nullptr) return;
  read_parameters(/*is_last=*/true);
  arguments_ += '}';
}

// Takes it off text_ once it is known; text of which it can be none goes.
void CallStream::read_head() {
  head_ = form_.head(text_);
  if (head_.state == CallHead::State::kNotYet && text_.size() > kLongestHead)
    head_.state = CallHead::State::kNone;
  if (head_.state == CallHead::State::kNone) std::string().swap(text_);
  if (!is_known()) return;
  text_.erase(0, head_.arguments);
  if (head_.next != nullptr) arguments_ += '{';
}

void CallStream::read_object(std::string_view text) {
  for (size_t i = 0; i < text.size() && !has_ended_; ++i) {
    if (!is_whole_) arguments_ += text[i];
    if (scan_char_for_end(text[i])) num_behind_ = text.size() - i - 1;
  }
}

// Whether it is the call's last.
bool CallStream::scan_char_for_end(char c) {
  if (in_string_) {
    scan_string_char(c);
    return false;
  }
  if (c == '"') in_string_ = true;
  if (c == '{' || c == '[') ++depth_;
  if (c != '}' && c != ']') return false;
  if (--depth_ > 0) return false;
  is_whole_ = true;
  // Behind a member of an object its end follows.
  has_ended_ = depth_ < (head_.is_member ? 0 : 1);
  return has_ended_;
}

void CallStream::scan_string_char(char c) {
  if (is_escaped_) {
    is_escaped_ = false;
  } else if (c == '\\') {
    is_escaped_ = true;
  } else if (c == '"') {
    in_string_ = false;
  }
}

void CallStream::read_parameters(bool is_last) {
  std::string_view rest = text_;
  while (const std::optional<ToolParameter> parameter = head_.next(rest, is_last)) {
    if (std::exchange(has_parameter_, true)) arguments_ += ',';
    arguments_ += json_quoted(parameter->name) + ":";
    arguments_ += parameter->is_json
                      ? parameter->text
                      : types_.value_json(head_.name, parameter->name, parameter->text);
  }
  text_.erase(0, text_.size() - rest.size());
}

}  // namespace strata::server
