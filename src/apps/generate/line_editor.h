// SPDX-License-Identifier: Apache-2.0
// LineEditor: lines from a terminal, with editing and history (libedit; ~/.editrc is read). What is
// pasted stays in the line with its line breaks where the terminal marks pastes. The history is
// kept in a file of mode 0600; one that cannot be read or written is no fault. One at a time, one
// thread.
#pragma once
#include <memory>
#include <string>

namespace strata::apps {

class LineEditor {
 public:
  // An empty `history_file`: the history ends with the editor.
  explicit LineEditor(std::string history_file);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  // Whether stdin and stderr are a terminal that lines can be edited at.
  static bool is_usable();

  enum class Outcome { kLine, kEnd, kInterrupted };
  struct Line {
    Outcome outcome = Outcome::kEnd;
    std::string text;  // without the line break that ended it; what Ctrl-C broke off
  };
  Line read_line(const std::string& prompt);
  // Whether more is there already, as the next line of a paste that is not marked does.
  [[nodiscard]] static bool has_more();
  void remember(const std::string& entry);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace strata::apps
