#include <gtest/gtest.h>

#include "apps/generation.h"

namespace strata::apps {
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
  StopFinder finder({"<end>"});
  EXPECT_EQ(finder.push("a <en"), "a ");
  EXPECT_EQ(finder.push("x"), "<enx");
  EXPECT_EQ(finder.push("<end"), "");
  EXPECT_EQ(finder.flush(), "<end");
}

TEST(StopFinder, NothingComesAfterAStop) {
  StopFinder finder({"."});
  EXPECT_EQ(finder.push("a.b"), "a");
  EXPECT_TRUE(finder.found());
  EXPECT_EQ(finder.push("c"), "");
  EXPECT_EQ(finder.flush(), "");
}

}  // namespace
}  // namespace strata::apps
