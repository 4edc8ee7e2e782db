// SPDX-License-Identifier: Apache-2.0
#include "apps/generate/turn_reader.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>

#include "apps/generate/interrupts.h"
#include "base/env.h"

namespace strata::apps {
namespace {

constexpr std::string_view kQuote = "\"\"\"";
constexpr const char* kPrompt = "> ";
constexpr const char* kMorePrompt = "... ";

std::string history_file() {
  const std::string folder = env_state_folder();
  return folder.empty() ? "" : folder + "/strata/chat_history";
}

bool is_blank(const std::string& text) {
  return text.find_first_not_of(" \t\r\n") == std::string::npos;
}

std::string without_end(std::string text) {
  while (text.ends_with('\n') || text.ends_with('\r')) text.pop_back();
  return text;
}

}  // namespace

bool is_command(const std::string& turn) {
  return turn.starts_with('/') && turn.find('\n') == std::string::npos;
}

TurnReader::TurnReader() : is_terminal_(::isatty(STDIN_FILENO) == 1) {
  if (LineEditor::is_usable()) editor_ = std::make_unique<LineEditor>(history_file());
}

std::optional<TurnReader::Line> TurnReader::read_line(const std::string& prompt) {
  if (editor_) return read_edited_line(prompt);
  if (is_terminal_) return read_plain_line(prompt);
  Line read;
  if (!std::getline(std::cin, read.text)) return std::nullopt;
  return read;
}

std::optional<TurnReader::Line> TurnReader::read_edited_line(const std::string& prompt) {
  LineEditor::Line read = editor_->read_line(prompt);
  if (read.outcome != LineEditor::Outcome::kLine) fmt::print(stderr, "\n");
  if (read.outcome == LineEditor::Outcome::kEnd) return std::nullopt;
  return Line{.is_broken_off = read.outcome == LineEditor::Outcome::kInterrupted,
              .text = std::move(read.text)};
}

// What a terminal has into `unread_`; false at its end. Behind a text Ctrl-D ends the line alone.
bool TurnReader::fill_unread() {
  char bytes[4096];
  const ssize_t count = ::read(STDIN_FILENO, bytes, sizeof(bytes));
  if (count > 0) {
    unread_.append(bytes, static_cast<size_t>(count));
    return true;
  }
  if (unread_.empty()) return false;
  unread_ += '\n';
  return true;
}

// By Ctrl-C: what was typed of it is gone.
TurnReader::Line TurnReader::break_plain_line_off() {
  Interrupts::forget();
  unread_.clear();
  fmt::print(stderr, "\n");
  return {.is_broken_off = true, .text = ""};
}

// Takes the first line off what is unread, which has one.
std::string TurnReader::take_unread_line() {
  const size_t end = unread_.find('\n');
  std::string line = unread_.substr(0, end);
  unread_.erase(0, end + 1);
  return line;
}

// Reads a line from a terminal that edits nothing.
std::optional<TurnReader::Line> TurnReader::read_plain_line(const std::string& prompt) {
  fmt::print(stderr, "{}", prompt);
  while (unread_.find('\n') == std::string::npos) {
    if (Interrupts::noted()) return break_plain_line_off();
    if (Interrupts::wait_for_input() && !fill_unread()) return std::nullopt;
  }
  return Line{.text = take_unread_line()};
}

// `text` begins with the quote; lines are added until one ends with it.
std::optional<TurnReader::Line> TurnReader::read_quoted(std::string text) {
  text.erase(0, kQuote.size());
  bool is_first = true;
  while (!text.ends_with(kQuote)) {
    const std::optional<Line> more = read_line(kMorePrompt);
    if (!more) {
      fmt::print(stderr, "[the input ended before a closing \"\"\"]\n");
      return std::nullopt;
    }
    if (more->is_broken_off) return more;
    text = is_first && text.empty() ? more->text : text + "\n" + more->text;
    is_first = false;
  }
  text.resize(text.size() - kQuote.size());
  return Line{.text = text};
}

TurnReader::Line TurnReader::read_pasted(std::string text) {
  while (editor_ && !is_command(text) && LineEditor::has_more()) {
    const std::optional<Line> more = read_line(kMorePrompt);
    has_ended_ = !more;
    if (!more) break;
    if (more->is_broken_off) return *more;
    text += "\n" + more->text;
  }
  return {.text = std::move(text)};
}

std::optional<TurnReader::Line> TurnReader::read_lines_of_turn() {
  const std::optional<Line> first = has_ended_ ? std::nullopt : read_line(kPrompt);
  if (!first) return std::nullopt;
  if (first->is_broken_off) {
    if (first->text.empty()) fmt::print(stderr, "Ctrl-D or /bye leaves\n");
    return first;
  }
  return first->text.starts_with(kQuote) ? read_quoted(first->text) : read_pasted(first->text);
}

std::optional<std::string> TurnReader::read_turn() {
  while (std::optional<Line> turn = read_lines_of_turn()) {
    if (turn->is_broken_off || is_blank(turn->text)) continue;
    const std::string text = without_end(std::move(turn->text));
    if (editor_) editor_->remember(text);
    return text;
  }
  return std::nullopt;
}

}  // namespace strata::apps
