// SPDX-License-Identifier: Apache-2.0
#include "server/openai/answer_parser.h"

#include <algorithm>
#include <utility>

namespace strata::server {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

struct ThinkMarks {
  std::string_view open, close, token = {};
};
constexpr ThinkMarks kThinkMarks[] = {{"<|channel>thought", "<channel|>", "<|channel>"},
                                      {"<think>", "</think>"},
                                      {"[THINK]", "[/THINK]"}};

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

std::string take_front(std::string& text, size_t size) {
  std::string front = text.substr(0, size);
  text.erase(0, front.size());
  return front;
}

std::string_view without_trailing(std::string_view text, std::string_view space) {
  return text.substr(0, size_without_trailing(text, space));
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
size_t longest_partial_mark_size(std::string_view text, const CallForm& form) {
  size_t size = partial_mark_size(text, form.open);
  for (const std::string_view mark : form.around)
    size = std::max(size, partial_mark_size(text, mark));
  return size;
}

}  // namespace

std::vector<std::string_view> AnswerForm::marks() const {
  if (has_channels) return text::harmony_marks();
  std::vector<std::string_view> out;
  if (!think.empty()) out = {think_token.empty() ? think : think_token, think_end};
  if (calls == nullptr) return out;
  for (const std::string_view mark : {calls->open, calls->close}) {
    if (!mark.empty()) out.push_back(mark);
  }
  out.insert(out.end(), calls->around.begin(), calls->around.end());
  out.insert(out.end(), calls->inside.begin(), calls->inside.end());
  return out;
}

AnswerForm answer_form_of(const text::ChatTemplate& chat) {
  if (text::writes_harmony(chat)) {
    return {.think = {},
            .think_end = {},
            .id_length = chat.conversation_form().id_length,
            .has_channels = true};
  }
  AnswerForm form{.calls = find_call_form(chat),
                  .think = {},
                  .think_end = {},
                  .id_length = chat.conversation_form().id_length};
  for (const ThinkMarks& marks : kThinkMarks) {
    if (!chat.mentions(marks.close)) continue;
    form.think = marks.open;
    form.think_end = marks.close;
    form.think_token = marks.token;
    break;
  }
  return form;
}

bool ends_in_reasoning(const AnswerForm& form, std::string_view prompt) {
  if (form.think.empty()) return false;
  return prompt.substr(0, size_without_trailing(prompt, kSpace)).ends_with(form.think);
}

AnswerParser::AnswerParser(const AnswerForm& form, const AnswerReading& reading)
    : form_(form), reading_(reading) {
  if (form_.has_channels) harmony_.emplace(reading.types != nullptr, reading.most_calls);
  if (form_.think.empty()) {
    state_ = State::kContent;
  } else if (reading_.in_reasoning) {
    state_ = State::kReasoning;
    drops_space_ = true;
  }
}

AnswerPiece AnswerParser::push(std::string_view text) {
  AnswerPiece out;
  if (harmony_) {
    harmony_->push(text, out);
    return out;
  }
  held_ += text;
  while (!is_done() && parse_step(out, /*is_last=*/false)) {
  }
  return out;
}

AnswerPiece AnswerParser::finish() {
  AnswerPiece out;
  if (harmony_) {
    harmony_->finish(out);
    return out;
  }
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
      return recognize_reasoning(is_last);
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
bool AnswerParser::recognize_reasoning(bool is_last) {
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
  const size_t end = text.find(form_.think_end);
  if (end != std::string_view::npos) {
    append_reasoning(out, without_trailing(text.substr(0, end), "\n"));
    held_.erase(0, end + form_.think_end.size());
    state_ = State::kContent;
    drops_space_ = true;
    return true;
  }
  const size_t waits = is_last ? 0 : partial_mark_size(text, form_.think_end);
  const std::string_view given = without_trailing(text.substr(0, text.size() - waits), "\n");
  append_reasoning(out, given);
  held_.erase(0, is_last ? held_.size() : given.size());
  return false;
}

void AnswerParser::append_reasoning(AnswerPiece& out, std::string_view text) {
  if (drops_space_) text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  if (!text.empty()) drops_space_ = false;
  out.reasoning += text;
}

// Behind reasoning line breaks are the form's, behind a call all space.
std::string_view AnswerParser::without_space_of_form(std::string_view text) const {
  if (!drops_space_) return text;
  const std::string_view dropped = num_calls_ > 0 ? kSpace : "\n";
  return text.substr(std::min(text.find_first_not_of(dropped), text.size()));
}

// Space at the end of what was told so far waits: it is content where more of that follows.
void AnswerParser::append_but_trailing_space(AnswerPiece& out, std::string_view text) {
  const size_t end = size_without_trailing(text, kSpace);
  if (end > 0) out.content += std::exchange(space_, "");
  out.content += text.substr(0, end);
  space_ += text.substr(end);
}

void AnswerParser::append_content(AnswerPiece& out, std::string_view text) {
  text = without_space_of_form(text);
  if (text.empty()) return;
  drops_space_ = false;
  if (reads_calls()) {
    append_but_trailing_space(out, text);
  } else {
    out.content += text;
  }
  has_content_ = has_content_ || !out.content.empty();
}

void AnswerParser::erase_separator_of_calls() {
  held_.erase(0, std::min(held_.find_first_not_of(" \t\r\n;"), held_.size()));
}

// Where calls are the whole answer; false while it may be either.
bool AnswerParser::recognize_call(bool is_last) {
  if (num_calls_ > 0) {
    erase_separator_of_calls();
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
  if (reads_calls()) {
    if (!form_.calls->open.empty()) return read_content_up_to_mark(out, is_last);
    if (!has_content_) return recognize_call(is_last);
  }
  append_content(out, std::exchange(held_, ""));
  return false;
}

bool AnswerParser::read_content_up_to_mark(AnswerPiece& out, bool is_last) {
  const CallForm& form = *form_.calls;
  const Mark mark = first_mark(held_, form);
  if (mark.at == std::string_view::npos) {
    const size_t waits = is_last ? 0 : longest_partial_mark_size(held_, form);
    append_content(out, take_front(held_, held_.size() - waits));
    return false;
  }
  append_content(out, take_front(held_, mark.at));
  held_.erase(0, mark.text.size());
  if (mark.opens) {
    state_ = State::kCall;
    searched_ = 0;
  }
  return true;
}

// What ends a call: its own mark, or the next call's.
std::string_view AnswerParser::call_end_mark() const {
  return form_.calls->close.empty() ? form_.calls->open : form_.calls->close;
}

// In what was not searched yet; npos where it is not there.
size_t AnswerParser::search_call_end() {
  const std::string_view mark = call_end_mark();
  const size_t from = searched_ > mark.size() ? searched_ - mark.size() : 0;
  searched_ = held_.size();
  return mark.empty() ? std::string::npos : held_.find(mark, from);
}

// What stands there of it goes to `stream_`, but for what may be the beginning of its end.
bool AnswerParser::read_call(AnswerPiece& out, bool is_last) {
  const size_t close = search_call_end();
  const bool is_whole = close != std::string::npos || is_last;
  const size_t waits = is_whole ? 0 : partial_mark_size(held_, call_end_mark());
  const size_t end = std::min(close, held_.size() - waits);
  stream_call_up_to(end);
  if (stream_->is_known()) return read_known_call(out, close, is_last);
  if (!is_whole) return false;
  read_whole_call(out, end, close != std::string::npos);
  return true;
}

void AnswerParser::stream_call_up_to(size_t end) {
  if (!stream_) stream_.emplace(*form_.calls, *reading_.types);
  if (end > streamed_) stream_->push(std::string_view(held_).substr(streamed_, end - streamed_));
  streamed_ = std::max(streamed_, end);
}

// One that never became certain, of `size` bytes; `is_marked`: what ends it stands behind it.
void AnswerParser::read_whole_call(AnswerPiece& out, size_t size, bool is_marked) {
  const std::string_view close = is_marked ? form_.calls->close : "";
  const std::string inner = take_front(held_, size);
  held_.erase(0, close.size());
  reset_call_state();
  append_parsed_calls(out, inner, close);
}

void AnswerParser::reset_call_state() {
  state_ = State::kContent;
  stream_.reset();
  streamed_ = 0;
}

bool AnswerParser::ends_by_itself() const {
  return form_.calls->close.empty() && stream_->has_ended();
}

// With its mark, in what is held; `close`: where that begins, or npos.
size_t AnswerParser::size_of_known_call(size_t close) const {
  if (ends_by_itself()) return streamed_ - stream_->num_behind();
  return close == std::string::npos ? held_.size() : close + form_.calls->close.size();
}

// `close`: where its mark begins, or npos. One without a mark ends with its arguments.
bool AnswerParser::read_known_call(AnswerPiece& out, size_t close, bool is_last) {
  if (!std::exchange(is_told_, true)) {
    space_.clear();
    out.calls.push_back({.name = stream_->name(), .arguments = ""});
  }
  append_streamed_arguments(out);
  if (!ends_by_itself() && close == std::string::npos && !is_last) {
    held_.erase(0, std::exchange(streamed_, 0));
    searched_ = 0;
    return false;
  }
  stream_->finish();
  append_streamed_arguments(out);
  held_.erase(0, size_of_known_call(close));
  end_streamed_call();
  return true;
}

void AnswerParser::append_streamed_arguments(AnswerPiece& out) {
  append_call_pieces(out.calls, {{.name = "", .arguments = stream_->take()}});
}

void AnswerParser::end_streamed_call() {
  reset_call_state();
  is_told_ = false;
  drops_space_ = true;
  ++num_calls_;
}

// The calls, or the text as it stood.
void AnswerParser::append_parsed_calls(AnswerPiece& out, std::string_view inner,
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
