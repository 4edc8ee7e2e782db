// SPDX-License-Identifier: Apache-2.0
#include "base/files.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/fsuid.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <thread>

#include "tests/base/temp_dir.h"

namespace strata {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::read_bytes;
using testing::TempDir;
using testing::write_bytes;

// Writes of this process beyond `bytes` of a file fail with EFBIG: a disk that is full.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    handler_ = ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FullDisk() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  sighandler_t handler_ = nullptr;
};

TEST(ReadFile, ReturnsTheBytesUpToItsCap) {
  const TempDir dir;
  write_bytes(dir.file("a"), std::string("ab\0c", 4));
  EXPECT_EQ(read_file(dir.file("a"), 4), std::string("ab\0c", 4));
  EXPECT_THAT(error_of([&] { read_file(dir.file("a"), 3); }), HasSubstr("at most 3"));
}

TEST(ReadFile, NamesWhatIsMissingOrNotAFile) {
  const TempDir dir;
  EXPECT_THAT(error_of([&] { read_file(dir.file("none"), 9); }), HasSubstr("none: open"));
  EXPECT_THAT(error_of([&] { read_file(dir.path(), 9); }), HasSubstr("not a regular file"));
  ASSERT_EQ(::mkfifo(dir.file("pipe").c_str(), 0600), 0);
  const int keep =
      ::open(dir.file("pipe").c_str(), O_RDWR | O_CLOEXEC);  // so that an open cannot block
  EXPECT_THAT(error_of([&] { ReadOnlyFile file(dir.file("pipe")); }),
              HasSubstr("not a regular file"));
  ::close(keep);
}

TEST(ReadOnlyFile, ReadsAnyRangeAndNoticesAShrunkenFile) {
  const TempDir dir;
  write_bytes(dir.file("a"), "0123456789");
  const ReadOnlyFile file(dir.file("a"));
  EXPECT_EQ(file.size(), 10);
  std::string out(4, ' ');
  file.read_at(6, std::as_writable_bytes(std::span(out.data(), out.size())));
  EXPECT_EQ(out, "6789");
  ASSERT_EQ(::truncate(dir.file("a").c_str(), 8), 0);
  const auto read = [&] {
    file.read_at(6, std::as_writable_bytes(std::span(out.data(), out.size())));
  };
  EXPECT_THAT(error_of(read), HasSubstr("ended before byte 10"));
}

TEST(MappedFile, ShowsTheBytesAlsoAfterRelease) {
  const TempDir dir;
  const std::string content(100'000, 'x');
  write_bytes(dir.file("a"), content);
  const MappedFile file(dir.file("a"));
  file.drop_pages(10, content.size() - 10);
  const auto bytes = file.bytes();
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()), content);
  write_bytes(dir.file("empty"), "");
  EXPECT_TRUE(MappedFile(dir.file("empty")).bytes().empty());
}

TEST(AtomicFile, AppearsWithCommitOnly) {
  const TempDir dir;
  write_bytes(dir.file("a"), "old");
  {
    AtomicFile file(dir.file("a"));
    file.append("new ");
    file.append("text");
    EXPECT_EQ(read_bytes(dir.file("a")), "old");
    file.seal();
    EXPECT_EQ(read_bytes(dir.file("a")), "old");
    file.commit();
  }
  EXPECT_EQ(read_bytes(dir.file("a")), "new text");
  EXPECT_THAT(dir.names(), ElementsAre("a"));
}

TEST(AtomicFile, WithoutCommitLeavesNothingBehind) {
  const TempDir dir;
  write_bytes(dir.file("a"), "old");
  {
    AtomicFile(dir.file("a")).append("new");
  }
  {
    AtomicFile sealed(dir.file("a"));
    sealed.seal();
  }
  EXPECT_EQ(read_bytes(dir.file("a")), "old");
  EXPECT_THAT(dir.names(), ElementsAre("a"));
}

TEST(AtomicFile, NeverWritesIntoALeftoverOrALink) {
  const TempDir dir;
  write_bytes(dir.file("victim"), "keep");
  const std::string taken = dir.file("a") + ".tmp." + std::to_string(::getpid()) + ".0";
  ASSERT_EQ(::symlink(dir.file("victim").c_str(), taken.c_str()), 0);
  write_file_atomic(dir.file("a"), "new");
  EXPECT_EQ(read_bytes(dir.file("victim")), "keep");
  EXPECT_EQ(read_bytes(dir.file("a")), "new");
}

TEST(AtomicFile, TwoWritersOfOnePathDoNotMix) {
  const TempDir dir;
  AtomicFile first(dir.file("a"));
  AtomicFile second(dir.file("a"));
  first.append("first");
  second.append("second");
  first.commit();
  second.commit();
  EXPECT_EQ(read_bytes(dir.file("a")), "second");
}

TEST(AtomicFile, FullDiskKeepsTheOldFile) {
  const TempDir dir;
  write_bytes(dir.file("a"), "old");
  const std::string big(1 << 20, 'x');
  std::string message;
  {
    const FullDisk full(1000);
    message = error_of([&] { write_file_atomic(dir.file("a"), big); });
  }
  EXPECT_THAT(message, HasSubstr("a.tmp."));
  EXPECT_THAT(message, HasSubstr("write: "));
  EXPECT_EQ(read_bytes(dir.file("a")), "old");
  EXPECT_THAT(dir.names(), ElementsAre("a"));
}

TEST(AtomicFile, FolderThatIsMissingOrReadOnlyIsNamed) {
  const TempDir dir;
  EXPECT_THAT(error_of([&] { write_file_atomic(dir.file("no/a"), "x"); }), HasSubstr("no/a.tmp."));
  write_bytes(dir.file("plain"), "");
  EXPECT_THAT(error_of([&] { write_file_atomic(dir.file("plain/a"), "x"); }),
              HasSubstr("create: "));
  ASSERT_EQ(::chmod(dir.path().c_str(), 0555), 0);
  std::string message;
  std::thread([&] {
    ::setfsuid(65534);  // this thread's alone: root would not be refused
    message = error_of([&] { write_file_atomic(dir.file("a"), "x"); });
  }).join();
  ::chmod(dir.path().c_str(), 0755);
  EXPECT_THAT(message, HasSubstr("create: Permission denied"));
}

TEST(AtomicFile, FailedRenameLeavesNothingBehind) {
  const TempDir dir;
  std::filesystem::create_directories(dir.file("a/b"));
  EXPECT_THAT(error_of([&] { write_file_atomic(dir.file("a"), "x"); }), HasSubstr("rename: "));
  EXPECT_THAT(dir.names(), ElementsAre("a"));
}

TEST(Folders, AreMadeWithParentsAndFilesRemovedOnce) {
  const TempDir dir;
  make_folders(dir.file("x/y/z"));
  make_folders(dir.file("x/y/z"));
  EXPECT_TRUE(file_exists(dir.file("x/y/z")));
  write_bytes(dir.file("plain"), "");
  EXPECT_THAT(error_of([&] { make_folders(dir.file("plain/y")); }), HasSubstr("plain/y: create"));
  remove_file(dir.file("plain"));
  remove_file(dir.file("plain"));
  EXPECT_FALSE(file_exists(dir.file("plain")));
  EXPECT_THAT(error_of([&] { sync_folder(dir.file("none")); }), HasSubstr("none: open"));
}

TEST(Folders, FolderOfAPath) {
  EXPECT_EQ(folder_of("a"), ".");
  EXPECT_EQ(folder_of("/a"), "/");
  EXPECT_EQ(folder_of("x/y/a"), "x/y");
}

}  // namespace
}  // namespace strata
