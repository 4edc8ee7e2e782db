// SPDX-License-Identifier: Apache-2.0
// Files of a folder that will appear as a whole.
#include "base/new_file.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "tests/base/temp_dir.h"

namespace strata {
namespace {

namespace fs = std::filesystem;
using testing::read_bytes;
using testing::TempDir;

TEST(NewFile, IsNoOneThatIsThere) {
  TempDir dir;
  {
    NewFile file(dir.file("a"));
    file.append("one ");
    file.append("two");
    file.close();
  }
  sync_file_system(dir.path());
  EXPECT_EQ(read_bytes(dir.file("a")), "one two");
  EXPECT_THROW(NewFile(dir.file("a")), Error);
  EXPECT_EQ(read_bytes(dir.file("a")), "one two");
  fs::create_symlink(dir.file("b"), dir.file("link"));
  EXPECT_THROW(NewFile(dir.file("link")), Error);
  EXPECT_THROW(NewFile(dir.file("missing/a")), Error);
}

}  // namespace
}  // namespace strata
