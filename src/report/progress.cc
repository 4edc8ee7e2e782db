// SPDX-License-Identifier: Apache-2.0
#include "report/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "report/format.h"
#include "report/text_width.h"
#include "report/word_wrap.h"

namespace strata::report {
namespace {

constexpr int kBarColumns = 20;
constexpr int kLeastBarColumns = 5;    // a shorter one says nothing
constexpr int kLineColumns = 1 << 20;  // a file has no right edge
constexpr double kTerminalInterval = 0.1;
constexpr double kLineInterval = 10;
constexpr double kTenthInterval = 1;

constexpr int kUsualColumns = 80;

void append_share_and_bar(std::string& line, const ProgressState& state, int bar_columns) {
  const double share =
      std::clamp(static_cast<double>(state.done) / static_cast<double>(state.total), 0.0, 1.0);
  line += fmt::format("  {:3.0f}%", static_cast<double>(static_cast<int64_t>(share * 100)));
  if (bar_columns <= 0) return;
  const int full = static_cast<int>(share * bar_columns);
  line += " |" + std::string(full, '#') + std::string(bar_columns - full, '.') + "|";
}

// With a bar of so many columns; 0: without.
std::string progress_line(const ProgressState& state, int bar_columns) {
  std::string line(state.label);
  if (state.total > 0) {
    append_share_and_bar(line, state, bar_columns);
    line += fmt::format("  {}/{}", state.done, state.total);
  } else {
    line += fmt::format("  {}", state.done);
  }
  if (state.taken_seconds >= 0) {
    line += "  in " + format_duration(state.taken_seconds);
  } else if (state.eta_seconds >= 0) {
    line += "  ETA " + format_duration(state.eta_seconds);
  }
  if (!state.note.empty()) line.append("  ").append(state.note);
  return printable(line);
}

}  // namespace

std::string render_progress(const ProgressState& state, int columns) {
  std::string line = progress_line(state, state.bar ? kBarColumns : 0);
  // The bar gives way to what the note says.
  if (const int over = text_width(line) - columns; state.bar && over > 0) {
    const int left = kBarColumns - over;
    line = progress_line(state, left >= kLeastBarColumns ? left : 0);
  }
  return truncate_to_width(line, columns);
}

Progress::Progress(ProgressOptions options) : options_(std::move(options)) {
  if (options_.out == nullptr) options_.out = stderr;
  if (!options_.clock) options_.clock = now_seconds;
  terminal_ = options_.terminal.value_or(::isatty(::fileno(options_.out)) == 1);
  done_ = options_.start;
  begin_ = options_.clock();
  if (options_.total > 0) last_tenth_ = done_ * 10 / options_.total;
}

Progress::~Progress() {
  if (line_open_) std::fputc('\n', options_.out);
  std::fflush(options_.out);
}

bool Progress::is_due(double now) const {
  // finish() has the line of the end.
  if (!terminal_ && options_.total > 0 && done_ >= options_.total) return false;
  const double since = now - last_draw_;
  if (!drawn_ || since >= (terminal_ ? kTerminalInterval : kLineInterval)) return true;
  return !terminal_ && options_.total > 0 && since >= kTenthInterval &&
         done_ * 10 / options_.total > last_tenth_;
}

void Progress::update(int64_t done, std::string_view note) {
  done_ = done;
  note_ = note;
  const double now = options_.clock();
  if (now - begin_ < options_.quiet_seconds) return;
  if (is_due(now)) draw(now, /*is_last=*/false);
}

void Progress::finish(std::string_view note) {
  if (finished_) return;
  note_ = note;
  const double now = options_.clock();
  finished_ = true;
  if (!drawn_ && now - begin_ < options_.quiet_seconds) return;
  draw(now, /*is_last=*/true);
  if (line_open_) std::fputc('\n', options_.out);
  line_open_ = false;
  std::fflush(options_.out);
}

void Progress::print(std::string_view line) {
  clear_line();
  const std::string text = printable(line) + "\n";
  std::fputs(text.c_str(), options_.out);
  std::fflush(options_.out);
}

double Progress::eta_seconds(double taken) const {
  const int64_t here = done_ - options_.start;
  if (here <= 0 || done_ > options_.total) return -1;
  return taken / static_cast<double>(here) * static_cast<double>(options_.total - done_);
}

std::string Progress::render(double now, bool is_last) const {
  const double taken = now - begin_;
  const ProgressState state{.label = options_.label,
                            .done = done_,
                            .total = options_.total,
                            .eta_seconds = eta_seconds(taken),
                            .taken_seconds = is_last ? taken : -1,
                            .note = note_,
                            .bar = terminal_};
  // The last column stays free: some terminals wrap when it is written.
  if (!terminal_) return render_progress(state, kLineColumns);
  const int columns = terminal_columns(options_.out);
  return render_progress(state, (columns == 0 ? kUsualColumns : columns) - 1);
}

void Progress::draw(double now, bool is_last) {
  const std::string line = render(now, is_last);
  clear_line();
  std::fputs(line.c_str(), options_.out);
  if (terminal_) {
    line_open_ = true;
  } else {
    std::fputc('\n', options_.out);
  }
  std::fflush(options_.out);
  last_draw_ = now;
  drawn_ = true;
  if (options_.total > 0) last_tenth_ = done_ * 10 / options_.total;
}

void Progress::clear_line() {
  if (line_open_) std::fputs("\r\x1b[K", options_.out);
  line_open_ = false;
}

}  // namespace strata::report
