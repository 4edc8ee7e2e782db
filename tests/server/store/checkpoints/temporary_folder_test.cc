// SPDX-License-Identifier: Apache-2.0
// Folders that something is made in: removed at their end, or by the next one.
#include "server/store/checkpoints/temporary_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>

#include "server/store/state/stoppable_sqlite.h"
#include "tests/base/temp_dir.h"

namespace strata::server {
namespace {

namespace fs = std::filesystem;
using strata::testing::error_of;
using strata::testing::TempDir;
using strata::testing::write_bytes;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

TEST(TemporaryFolder, IsRemovedUnlessItWasKept) {
  const TempDir dir;
  {
    const TemporaryFolder folder(dir.file("out.db-"));
    struct stat info = {};
    ASSERT_EQ(::stat(folder.path().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0700U);
    write_bytes(folder.path() + "/x", "x");
  }
  EXPECT_THAT(dir.names(), IsEmpty());
  TemporaryFolder kept(dir.file("out.db-"));
  fs::rename(kept.path(), dir.file("out"));
  kept.keep();
  EXPECT_THAT(dir.names(), UnorderedElementsAre("out"));
}

TEST(TemporaryFolder, RemovesWhatNobodyHoldsAndNothingElse) {
  const TempDir dir;
  const std::string stem = dir.file("out.db-");
  const std::string id(31, '0');
  fs::create_directories(stem + id + "1/inside");
  fs::create_directories(stem + id);        // not a name of ours
  fs::create_directories(stem + id + "g");  // nor this
  fs::create_directories(dir.file("victim"));
  fs::create_directory_symlink(dir.file("victim"), stem + id + "2");
  write_bytes(stem + id + "3", "of an older version, which may still run");
  write_bytes(stem + id + "4", "of one long ago");
  write_bytes(stem + id + "4-journal", "");
  for (const char* name : {"4", "4-journal"})
    fs::last_write_time(stem + id + name,
                        fs::file_time_type::clock::now() - std::chrono::hours(50));
  const TemporaryFolder one(stem);
  const TemporaryFolder two(stem);  // the first one is in use
  EXPECT_TRUE(fs::exists(one.path()) && fs::exists(two.path()));
  const auto name = [](const std::string& path) { return fs::path(path).filename().string(); };
  EXPECT_THAT(dir.names(), UnorderedElementsAre(name(one.path()), name(two.path()), "out.db-" + id,
                                                "out.db-" + id + "g", "out.db-" + id + "2",
                                                "out.db-" + id + "3", "victim"));
}

TEST(StoppableSqlite, ALongStatementEnds) {
  const TempDir dir;
  const auto sql = open_stoppable_sqlite(dir.file("db"), [] { return true; });
  EXPECT_THAT(error_of([&] {
                sql->run(
                    "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < "
                    "1000000) SELECT COUNT(*) FROM n",
                    {});
              }),
              HasSubstr("interrupted"));
}

}  // namespace
}  // namespace strata::server
