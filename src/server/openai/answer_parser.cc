// SPDX-License-Identifier: Apache-2.0
#include "server/openai/answer_parser.h"

#include <algorithm>
#include <utility>

namespace strata::server {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

struct ThinkMarks {
  std::string_view open, close;
};
constexpr ThinkMarks kThinkMarks[] = {{"<think>", "</think>"}, {"[THINK]", "[/THINK]"}};

// How much of the end of `text` may be the beginning of `mark`.
size_t partial_mark_size(std::string_view text, std::string_view mark) {
  for (size_t size = std::min(mark.size() - (mark.empty() ? 0 : 1), text.size()); size > 0;
       --size) {
    if (text.ends_with(mark.substr(0, size))) return size;
  }
  return 0;
}

size_t size_without_trailing(std::string_view text, std::string_view space) {
  const size_t last = text.find_last_not_of(space);
  return last == std::string_view::npos ? 0 : last + 1;
}

struct Mark {
  size_t at = std::string_view::npos;
  std::string_view text = {};
  bool opens = false;
};

// The first of the marks that a call begins with, or that stand around calls.
Mark first_mark(std::string_view text, const CallForm& form) {
  Mark first;
  const auto look = [&](std::string_view mark, bool opens) {
    if (mark.empty()) return;
    const size_t at = text.find(mark);
    if (at < first.at) first = {at, mark, opens};
  };
  look(form.open, true);
  for (const std::string_view mark : form.around) look(mark, false);
  return first;
}

// How much of the end of `text` may be the beginning of such a mark.
size_t partial_first_mark_size(std::string_view text, const CallForm& form) {
  size_t size = partial_mark_size(text, form.open);
  for (const std::string_view mark : form.around)
    size = std::max(size, partial_mark_size(text, mark));
  return size;
}

}  // namespace

std::vector<std::string_view> AnswerForm::marks() const {
  std::vector<std::string_view> out;
  if (!think.empty()) out = {think, think_end};
  if (calls == nullptr) return out;
  for (const std::string_view mark : {calls->open, calls->close}) {
    if (!mark.empty()) out.push_back(mark);
  }
  out.insert(out.end(), calls->around.begin(), calls->around.end());
  out.insert(out.end(), calls->inside.begin(), calls->inside.end());
  return out;
}

AnswerForm answer_form_of(const text::ChatTemplate& chat) {
  AnswerForm form{.calls = find_call_form(chat), .think = {}, .think_end = {}};
  for (const ThinkMarks& marks : kThinkMarks) {
    if (!chat.mentions(marks.close)) continue;
    form.think = marks.open;
    form.think_end = marks.close;
    break;
  }
  return form;
}

void append_call_pieces(std::vector<ToolCall>& calls, std::vector<ToolCall> more) {
  for (ToolCall& call : more) {
    if (call.name.empty() && call.arguments.empty()) continue;
    if (call.name.empty() && !calls.empty()) {
      calls.back().arguments += call.arguments;
    } else {
      calls.push_back(std::move(call));
    }
  }
}

bool ends_in_reasoning(const AnswerForm& form, std::string_view prompt) {
  if (form.think.empty()) return false;
  return prompt.substr(0, size_without_trailing(prompt, kSpace)).ends_with(form.think);
}

AnswerParser::AnswerParser(const AnswerForm& form, const AnswerReading& reading)
    : form_(form), reading_(reading) {
  if (form_.think.empty()) {
    state_ = State::kContent;
  } else if (reading_.in_reasoning) {
    state_ = State::kReasoning;
    drops_space_ = true;
  }
}

AnswerPiece AnswerParser::push(std::string_view text) {
  AnswerPiece out;
  held_ += text;
  while (!is_done() && parse_step(out, /*is_last=*/false)) {
  }
  return out;
}

AnswerPiece AnswerParser::finish() {
  AnswerPiece out;
  while (!is_done() && parse_step(out, /*is_last=*/true)) {
  }
  if (num_calls_ == 0) out.content += std::exchange(space_, "");
  return out;
}

// False when it needs more text.
bool AnswerParser::parse_step(AnswerPiece& out, bool is_last) {
  if (held_.empty() && !(is_last && state_ == State::kCall)) return false;
  switch (state_) {
    case State::kStart:
      return decide_reasoning_or_content(is_last);
    case State::kReasoning:
      return read_reasoning(out, is_last);
    case State::kContent:
      return read_content(out, is_last);
    case State::kCall:
      return read_call(out, is_last);
  }
  return false;
}

// Reasoning, or none.
bool AnswerParser::decide_reasoning_or_content(bool is_last) {
  const std::string_view text = held_;
  const size_t first = std::min(text.find_first_not_of(kSpace), text.size());
  const std::string_view rest = text.substr(first);
  if (rest.starts_with(form_.think)) {
    held_.erase(0, first + form_.think.size());
    state_ = State::kReasoning;
    drops_space_ = true;
    return true;
  }
  if (!is_last && form_.think.starts_with(rest)) return false;
  state_ = State::kContent;
  return true;
}

// Line breaks on either side of it are the form's, as templates have it.
bool AnswerParser::read_reasoning(AnswerPiece& out, bool is_last) {
  const std::string_view text = held_;
  const size_t at = text.find(form_.think_end);
  const bool ends = at != std::string_view::npos;
  const size_t certain =
      ends ? at : text.size() - (is_last ? 0 : partial_mark_size(text, form_.think_end));
  const size_t kept = size_without_trailing(text.substr(0, certain), "\n");
  std::string_view given = text.substr(0, kept);
  if (drops_space_) given.remove_prefix(std::min(given.find_first_not_of('\n'), given.size()));
  if (!given.empty()) drops_space_ = false;
  out.reasoning += given;
  held_.erase(0, ends ? at + form_.think_end.size() : (is_last ? text.size() : kept));
  if (ends) {
    state_ = State::kContent;
    drops_space_ = true;
  }
  return ends;
}

void AnswerParser::append_content(AnswerPiece& out, std::string_view text) {
  // Behind reasoning line breaks are the form's, behind a call all space.
  const std::string_view dropped = num_calls_ > 0 ? kSpace : "\n";
  if (drops_space_) text.remove_prefix(std::min(text.find_first_not_of(dropped), text.size()));
  if (text.empty()) return;
  drops_space_ = false;
  if (reads_calls()) {
    const size_t end = size_without_trailing(text, kSpace);
    if (end > 0) out.content += std::exchange(space_, "");
    out.content += text.substr(0, end);
    space_ += text.substr(end);
  } else {
    out.content += text;
  }
  has_content_ = has_content_ || !out.content.empty();
}

// Where calls are the whole answer; false while it may be either.
bool AnswerParser::decide_call_or_content(bool is_last) {
  if (num_calls_ > 0) {  // what stands between two
    held_.erase(0, std::min(held_.find_first_not_of(" \t\r\n;"), held_.size()));
    if (held_.empty()) return false;
  }
  const std::string_view text = held_;
  const size_t first = std::min(text.find_first_not_of(kSpace), text.size());
  const std::string_view rest = text.substr(first);
  const std::string_view mark = form_.calls->around.front();
  if (rest.starts_with(mark)) {
    held_.erase(0, first + mark.size());
    state_ = State::kCall;
  } else if (rest.starts_with('{')) {
    state_ = State::kCall;
  } else if (is_last || !mark.starts_with(rest)) {
    has_content_ = true;
  } else {
    return false;
  }
  return true;
}

bool AnswerParser::read_content(AnswerPiece& out, bool is_last) {
  if (!reads_calls()) {
    append_content(out, std::exchange(held_, ""));
    return false;
  }
  const CallForm& form = *form_.calls;
  if (form.open.empty() && !has_content_) return decide_call_or_content(is_last);
  const std::string_view text = held_;
  const Mark mark = form.open.empty() ? Mark() : first_mark(text, form);
  if (mark.at == std::string_view::npos) {
    const size_t waits = is_last || form.open.empty() ? 0 : partial_first_mark_size(text, form);
    const std::string certain = held_.substr(0, text.size() - waits);
    held_.erase(0, certain.size());
    append_content(out, certain);
    return false;
  }
  append_content(out, text.substr(0, mark.at));
  held_.erase(0, mark.at + mark.text.size());
  if (mark.opens) {
    state_ = State::kCall;
    searched_ = 0;
  }
  return true;
}

// What stands there of it goes to `stream_`, but for what may be the beginning of its end.
bool AnswerParser::read_call(AnswerPiece& out, bool is_last) {
  const CallForm& form = *form_.calls;
  const std::string_view mark = form.close.empty() ? form.open : form.close;
  const size_t from = searched_ > mark.size() ? searched_ - mark.size() : 0;
  const size_t at = mark.empty() ? std::string::npos : held_.find(mark, from);
  searched_ = held_.size();
  const bool is_whole = at != std::string::npos || is_last;
  const size_t end = std::min(at, held_.size() - (is_whole ? 0 : partial_mark_size(held_, mark)));
  if (!stream_) stream_.emplace(form, *reading_.types);
  if (end > streamed_) stream_->push(std::string_view(held_).substr(streamed_, end - streamed_));
  streamed_ = std::max(streamed_, end);
  if (stream_->is_known()) return read_known_call(out, at, is_last);
  if (!is_whole) return false;
  const bool closes = !form.close.empty() && at != std::string::npos;
  const std::string inner = held_.substr(0, end);
  held_.erase(0, closes ? end + form.close.size() : end);
  reset_call_state();
  append_calls_or_text(out, inner, closes ? form.close : "");
  return true;
}

void AnswerParser::reset_call_state() {
  state_ = State::kContent;
  stream_.reset();
  streamed_ = 0;
}

// `close`: where its mark begins, or npos. One without a mark ends with its arguments.
bool AnswerParser::read_known_call(AnswerPiece& out, size_t close, bool is_last) {
  const CallForm& form = *form_.calls;
  if (!std::exchange(is_told_, true)) {
    space_.clear();
    out.calls.push_back({.name = stream_->name(), .arguments = ""});
  }
  append_call_pieces(out.calls, {{.name = "", .arguments = stream_->take()}});
  const bool by_itself = form.close.empty() && stream_->has_ended();
  if (!by_itself && close == std::string::npos && !is_last) {
    held_.erase(0, std::exchange(streamed_, 0));
    searched_ = 0;
    return false;
  }
  stream_->finish();
  append_call_pieces(out.calls, {{.name = "", .arguments = stream_->take()}});
  size_t behind = close == std::string::npos ? held_.size() : close + form.close.size();
  if (by_itself) behind = streamed_ - stream_->num_behind();
  held_.erase(0, behind);
  reset_call_state();
  is_told_ = false;
  drops_space_ = true;
  ++num_calls_;
  return true;
}

// The calls, or the text as it stood.
void AnswerParser::append_calls_or_text(AnswerPiece& out, std::string_view inner,
                                        std::string_view close) {
  const CallForm& form = *form_.calls;
  ToolCalls calls = form.read(inner, *reading_.types);
  if (!calls) {
    out.content += std::exchange(space_, "");
    out.content += form.open;
    out.content += inner;
    out.content += close;
    has_content_ = true;
    return;
  }
  space_.clear();
  drops_space_ = true;
  for (ToolCall& call : *calls) {
    if (is_done()) return;
    out.calls.push_back(std::move(call));
    ++num_calls_;
  }
}

}  // namespace strata::server
