// SPDX-License-Identifier: Apache-2.0
#include "report/progress.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace strata::report {
namespace {

// A Progress that writes to a temporary file and reads a clock the test sets.
struct Scene {
  explicit Scene(bool terminal, int64_t total = 100, int64_t start = 0)
      : file(std::tmpfile()),
        progress({.label = "train",
                  .total = total,
                  .start = start,
                  .out = file,
                  .terminal = terminal,
                  .clock = [this] { return time; }}) {}
  std::string written() {
    std::fflush(file);
    std::string text(static_cast<size_t>(std::ftell(file)), '\0');
    std::rewind(file);
    EXPECT_EQ(std::fread(text.data(), 1, text.size(), file), text.size());
    return text;
  }
  double time = 1000;
  std::FILE* file;
  Progress progress;
};

int count(const std::string& text, const std::string& what) {
  int n = 0;
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; ++at) ++n;
  return n;
}

TEST(RenderProgress, ShowsShareBarAndEta) {
  EXPECT_EQ(render_progress(
                {.label = "train", .done = 11, .total = 30, .eta_seconds = 12, .note = "x"}, 200),
            "train   36% |#######.............|  11/30  ETA 12 s  x");
  EXPECT_EQ(render_progress({.label = "load", .done = 7}, 200), "load  7");
  EXPECT_EQ(render_progress(
                {.label = "t", .done = 5, .total = 5, .taken_seconds = 61, .bar = false}, 200),
            "t  100%  5/5  in 1:01");
}

TEST(RenderProgress, IsCutToTheTerminal) {
  EXPECT_EQ(render_progress({.label = "train", .done = 1, .total = 2, .note = "loss 1"}, 12),
            "train   50%~");
}

// The bar goes first, so that the loss is to be read at 60 columns.
TEST(RenderProgress, TheBarGivesWayToTheNote) {
  const ProgressState state = {.label = "train",
                               .done = 11,
                               .total = 30,
                               .eta_seconds = 12,
                               .note = "loss 1.2345  eval 2.3456  812 tok/s"};
  EXPECT_EQ(render_progress(state, 77),
            "train   36% |###......|  11/30  ETA 12 s  loss 1.2345  eval 2.3456  812 tok/s");
  EXPECT_EQ(render_progress(state, 71),
            "train   36%  11/30  ETA 12 s  loss 1.2345  eval 2.3456  812 tok/s");
  EXPECT_EQ(render_progress(state, 59),
            "train   36%  11/30  ETA 12 s  loss 1.2345  eval 2.3456  81~");
}

// A log has one line of the end, not one with an ETA of nothing before it.
TEST(Progress, AFileHasTheEndOnce) {
  Scene scene(false);
  for (int i = 1; i <= 100; ++i) {
    scene.time += 5;
    scene.progress.update(i, "n");
  }
  scene.progress.finish("end");
  const std::string text = scene.written();
  EXPECT_EQ(count(text, "100/100"), 1) << text;
  EXPECT_NE(text.find("100/100  in 8:20  end\n"), std::string::npos) << text;
}

TEST(Progress, TerminalRedrawsAtMostTenTimesASecond) {
  Scene scene(true);
  for (int i = 1; i <= 100; ++i) {
    scene.progress.update(i, "n");
    scene.time += 0.01;
  }
  scene.progress.finish("end");
  const std::string text = scene.written();
  EXPECT_LE(count(text, "train"), 12);
  EXPECT_GE(count(text, "train"), 9);
  EXPECT_EQ(count(text, "\n"), 1);
  EXPECT_NE(text.find("100/100  in 1.0 s  end"), std::string::npos) << text;
}

TEST(Progress, FileGetsPlainLinesEachTenth) {
  Scene scene(false);
  for (int i = 1; i <= 100; ++i) {
    scene.time += 0.5;  // 50 s of work
    scene.progress.update(i);
  }
  scene.progress.finish();
  const std::string text = scene.written();
  EXPECT_EQ(text.find('\r'), std::string::npos);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_EQ(text.find('#'), std::string::npos);
  EXPECT_GE(count(text, "\n"), 10);
  EXPECT_LE(count(text, "\n"), 13);
}

TEST(Progress, EtaOfResumedWorkCountsFromItsStart) {
  Scene scene(false, 100, 90);
  scene.time += 5;
  scene.progress.update(95);  // 5 units in 5 s, 5 left
  EXPECT_NE(scene.written().find("95/100  ETA 5.0 s"), std::string::npos);
}

TEST(Progress, PrintClearsTheBarFirst) {
  Scene scene(true);
  scene.progress.update(1);
  scene.progress.print("saved");
  const std::string text = scene.written();
  EXPECT_NE(text.find("\r\x1b[Ksaved\n"), std::string::npos) << text;
}

}  // namespace
}  // namespace strata::report
