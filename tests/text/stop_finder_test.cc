// SPDX-License-Identifier: Apache-2.0
#include "text/stop_finder.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace strata::text {
namespace {

// All that comes out when `text` is pushed in pieces of `size` bytes.
std::string through(const std::vector<std::string>& stops, const std::string& text, size_t size) {
  StopFinder finder(stops);
  std::string out;
  for (size_t at = 0; at < text.size(); at += size) out += finder.push(text.substr(at, size));
  return out + finder.flush();
}

TEST(StopFinder, CutsBeforeTheFirstStopHoweverTheTextIsSplit) {
  const std::string text = "one aab two END three";
  for (size_t size = 1; size <= text.size(); ++size) {
    EXPECT_EQ(through({"END"}, text, size), "one aab two ") << size;
    EXPECT_EQ(through({"aab", "one aac"}, text, size), "one ") << size;
    EXPECT_EQ(through({"nothing"}, text, size), text) << size;
    EXPECT_EQ(through({}, text, size), text) << size;
    EXPECT_EQ(through({"threex", "three"}, text, size), "one aab two END ") << size;
  }
}

TEST(StopFinder, HoldsBackOnlyWhatMayBecomeAStop) {
  const std::vector<std::string> stops = {"<end>"};
  StopFinder finder(stops);
  EXPECT_EQ(finder.push("a <en"), "a ");
  EXPECT_EQ(finder.push("x"), "<enx");
  EXPECT_EQ(finder.push("<end"), "");
  EXPECT_EQ(finder.flush(), "<end");
}

TEST(StopFinder, NothingComesAfterAStop) {
  const std::vector<std::string> stops = {"."};
  StopFinder finder(stops);
  EXPECT_EQ(finder.push("a.b"), "a");
  EXPECT_TRUE(finder.found());
  EXPECT_EQ(finder.push("c"), "");
  EXPECT_EQ(finder.flush(), "");
}

// Who watches learns of a stop with the piece that completes it, and keeps no text.
TEST(StopFinder, WatchesForTheSameStops) {
  const std::vector<std::string> stops = {"END", ""};
  const std::string text = "one aab two END three";
  for (size_t size = 1; size <= text.size(); ++size) {
    StopFinder finder(stops);
    size_t at = 0;
    while (at < text.size() && !finder.detect_stop(text.substr(at, size))) at += size;
    EXPECT_TRUE(finder.found()) << size;
    EXPECT_LE(at, text.find("END") + 2) << size;
    EXPECT_GE(at + size, text.find("END") + 3) << size;
  }
}

}  // namespace
}  // namespace strata::text
