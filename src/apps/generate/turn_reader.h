// SPDX-License-Identifier: Apache-2.0
// TurnReader: what a person says in a chat, turn by turn: a line; the lines between two """; or, at
// a terminal, lines that were pasted at once. At a terminal that can do it lines are edited and
// remembered (apps/generate/line_editor.h); anything else is read as plain lines.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "apps/generate/line_editor.h"

namespace strata::apps {

class TurnReader {
 public:
  TurnReader();

  [[nodiscard]] bool is_terminal() const { return is_terminal_; }
  // The next turn that is not blank; nothing at the end of stdin. A turn of one line that begins
  // with a slash is a command, and always one line.
  std::optional<std::string> read_turn();

 private:
  struct Line {
    bool is_broken_off = false;  // by Ctrl-C
    std::string text;
  };
  std::optional<Line> read_line(const std::string& prompt);
  std::optional<Line> read_edited_line(const std::string& prompt);
  std::optional<Line> read_plain_line(const std::string& prompt);
  bool fill_unread();
  Line break_plain_line_off();
  std::string take_unread_line();
  std::optional<Line> read_quoted(std::string text);
  Line read_pasted(std::string text);
  std::optional<Line> read_lines_of_turn();  // or the one that was broken off

  bool is_terminal_;
  bool has_ended_ = false;              // behind the lines of the turn that was last
  std::unique_ptr<LineEditor> editor_;  // null where lines cannot be edited (TERM=dumb)
  std::string unread_;                  // of such a terminal, behind a line's end
};

bool is_command(const std::string& turn);

}  // namespace strata::apps
