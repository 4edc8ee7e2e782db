// SPDX-License-Identifier: Apache-2.0
// Source of the form: openai-harmony's docs/format.md.
#include "text/harmony_reader.h"

#include <algorithm>
#include <utility>

namespace strata::text {
namespace {

constexpr std::string_view kStart = "<|start|>";
constexpr std::string_view kChannel = "<|channel|>";
constexpr std::string_view kConstrain = "<|constrain|>";
constexpr std::string_view kMessage = "<|message|>";
constexpr std::string_view kEnds[] = {"<|end|>", "<|call|>", "<|return|>"};
constexpr std::string_view kRecipient = "to=";
constexpr std::string_view kFunctions = "functions.";
constexpr std::string_view kSpace = " \t\r\n";

// What follows `mark` in a header, up to a space or the next mark; empty where it is not there.
std::string_view word_behind(std::string_view header, std::string_view mark) {
  const size_t at = header.find(mark);
  if (at == std::string_view::npos) return {};
  const std::string_view rest = header.substr(at + mark.size());
  return rest.substr(0, rest.find_first_of(" \t\r\n<"));
}

// Whether `text` begins like a header, or may yet.
bool may_begin_header(std::string_view text) {
  const std::string_view rest = text.substr(std::min(text.find_first_not_of(kSpace), text.size()));
  return std::ranges::any_of(
      std::initializer_list{kStart, kChannel, kMessage, kConstrain, kRecipient},
      [&](std::string_view mark) { return rest.starts_with(mark) || mark.starts_with(rest); });
}

struct Mark {
  size_t at = std::string_view::npos;
  size_t size = 0;
};

// The first that ends a message: a mark of its own, or the next one's beginning, which stays.
Mark first_end(std::string_view text) {
  Mark first = {text.find(kStart), 0};
  for (const std::string_view mark : kEnds) {
    const size_t at = text.find(mark);
    if (at < first.at) first = {at, mark.size()};
  }
  return first;
}

// How much of the end of `text` may be the beginning of such a mark.
size_t partial_end_size(std::string_view text) {
  size_t most = 0;
  const auto look = [&](std::string_view mark) {
    for (size_t size = std::min(mark.size() - 1, text.size()); size > most; --size) {
      if (text.ends_with(mark.substr(0, size))) most = size;
    }
  };
  look(kStart);
  for (const std::string_view mark : kEnds) look(mark);
  return most;
}

}  // namespace

bool writes_harmony(const ChatTemplate& chat) {
  return chat.mentions("<|channel|>analysis<|message|>") &&
         chat.mentions("<|channel|>final<|message|>");
}

std::vector<std::string_view> harmony_marks() {
  std::vector<std::string_view> marks = {kStart, kChannel, kConstrain, kMessage};
  marks.insert(marks.end(), std::begin(kEnds), std::end(kEnds));
  return marks;
}

void HarmonyReader::push(std::string_view text, AnswerPiece& out) {
  held_ += text;
  while (!is_done() && read_step(out, /*is_last=*/false)) {
  }
}

void HarmonyReader::finish(AnswerPiece& out) {
  while (!is_done() && read_step(out, /*is_last=*/true)) {
  }
  if (state_ == State::kCall && is_told_ && !is_done()) ++num_calls_;
}

// False when it needs more text.
bool HarmonyReader::read_step(AnswerPiece& out, bool is_last) {
  if (held_.empty()) return false;
  return state_ == State::kHeader ? read_header(is_last) : read_body(out, is_last);
}

bool HarmonyReader::read_header(bool is_last) {
  if (is_first_ && !may_begin_header(held_)) {
    is_first_ = false;
    state_ = State::kContent;
    return true;
  }
  const size_t end = held_.find(kMessage);
  if (end != std::string::npos) {
    begin_message(std::string_view(held_).substr(0, end));
    held_.erase(0, end + kMessage.size());
    return true;
  }
  if (is_last) held_.clear();  // a header that was cut says nothing
  return false;
}

void HarmonyReader::begin_message(std::string_view header) {
  is_first_ = false;
  is_told_ = false;
  const std::string_view recipient = word_behind(header, kRecipient);
  const bool is_call = recipient.starts_with(kFunctions) && recipient.size() > kFunctions.size();
  if (is_call && reads_calls_) {
    function_ = recipient.substr(kFunctions.size());
    state_ = State::kCall;
  } else {
    const bool thinks = recipient.empty() && word_behind(header, kChannel) == "analysis";
    state_ = thinks ? State::kReasoning : State::kContent;
  }
}

bool HarmonyReader::read_body(AnswerPiece& out, bool is_last) {
  const Mark end = first_end(held_);
  if (end.at == std::string_view::npos) {
    const size_t given = held_.size() - (is_last ? 0 : partial_end_size(held_));
    append(std::string_view(held_).substr(0, given), out);
    held_.erase(0, given);
    return false;
  }
  append(std::string_view(held_).substr(0, end.at), out);
  held_.erase(0, end.at + end.size);
  if (state_ == State::kCall && is_told_) ++num_calls_;
  state_ = State::kHeader;
  return true;
}

void HarmonyReader::append(std::string_view text, AnswerPiece& out) {
  switch (state_) {
    case State::kReasoning:
      out.reasoning += text;
      break;
    case State::kCall:
      append_to_call(text, out);
      break;
    case State::kHeader:
    case State::kContent:
      out.content += text;
      break;
  }
}

// Arguments begin with a brace; text that does not is content.
void HarmonyReader::append_to_call(std::string_view text, AnswerPiece& out) {
  if (!is_told_) {
    text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
    if (text.empty()) return;
    if (text.front() != '{') {
      state_ = State::kContent;
      out.content += text;
      return;
    }
    out.calls.push_back({.name = function_, .arguments = ""});
    is_told_ = true;
  }
  append_call_pieces(out.calls, {{.name = "", .arguments = std::string(text)}});
}

}  // namespace strata::text
