// SPDX-License-Identifier: Apache-2.0
#include "model/export/gguf_plan.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"

namespace strata::model {
namespace {

int64_t open_files() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return std::distance(begin(files), end(files));
}

// What the reader refuses is usual: a model that llama.cpp's keys cannot say.
TEST(ParsedHeader, AHeaderThatCannotBeReadLeavesNoFileOpen) {
  GgufHeader header;
  header.add_text("general.name", "without an architecture");
  const int64_t before = open_files();
  for (int i = 0; i < 3; ++i) EXPECT_THROW(ParsedHeader read(header), Error);
  EXPECT_EQ(open_files(), before);
}

}  // namespace
}  // namespace strata::model
