// SPDX-License-Identifier: Apache-2.0
// Progress of long work, to stderr: a bar redrawn in place on a terminal, plain lines otherwise.
// Both are rate-limited, so update() may be called as often as is handy. One thread.
//   Progress progress({.label = "train", .total = steps});
//   progress.update(step, "loss 1.234  812 tok/s");
//   progress.finish("loss 1.201");
#pragma once
#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace strata::report {

struct ProgressOptions {
  std::string label = {};
  int64_t total = 0;                   // of whatever is counted; 0: unknown, no bar and no ETA
  int64_t start = 0;                   // where resumed work begins: the ETA counts from here
  std::FILE* out = nullptr;            // null: stderr
  std::optional<bool> terminal = {};   // default: ask the operating system
  double quiet_seconds = 0;            // nothing is drawn before: short work stays silent
  std::function<double()> clock = {};  // seconds; default: base/clock.h
};

class Progress {
 public:
  explicit Progress(ProgressOptions options);
  ~Progress();  // leaves the cursor on a fresh line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `done` counts from 0 and includes options.start. Draws at most 10 times a second on a terminal;
  // in a file one line a 10 s, and whenever another tenth of the work is done (at most one a
  // second), but for the last, which finish() draws.
  void update(int64_t done, std::string_view note = {});
  // Draws the last state, with the time taken instead of the ETA; nothing of work that was so short
  // that it is silent.
  void finish(std::string_view note = {});
  // Prints a line of its own (a result, a warning) without breaking the bar.
  void print(std::string_view line);

 private:
  [[nodiscard]] bool is_due(double now) const;           // whether to draw
  [[nodiscard]] double eta_seconds(double taken) const;  // -1: not known
  [[nodiscard]] std::string render(double now, bool is_last) const;
  void draw(double now, bool is_last);
  void clear_line();

  ProgressOptions options_;
  bool terminal_ = false;
  bool finished_ = false;
  bool line_open_ = false;  // a bar stands on the current line
  int64_t done_ = 0;
  int64_t last_tenth_ = 0;
  double begin_ = 0;
  double last_draw_ = 0;
  bool drawn_ = false;
  std::string note_;
};

// "label  37% |#######.............|  11/30  ETA 0:12  note", with a shorter bar or none where that
// makes it fit into `columns`, else cut. eta < 0: not known
// yet.
struct ProgressState {
  std::string_view label;
  int64_t done = 0;
  int64_t total = 0;
  double eta_seconds = -1;
  double taken_seconds = -1;  // >= 0: finished
  std::string_view note = {};
  bool bar = true;
};
std::string render_progress(const ProgressState& state, int columns);

}  // namespace strata::report
