// SPDX-License-Identifier: Apache-2.0
// Memory in files without names: it holds what was written, whether or not it is in the machine's
// memory, and is refused where it would not be on a disk.
#include "backend/file_memory.h"

#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/vfs.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"

namespace strata {
namespace {

// Of this process, mapped from files.
int64_t resident_file_bytes() {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("RssFile:")) return std::stoll(line.substr(8)) * 1024;
  }
  return -1;
}

class FileMemoryLeaving : public testing::TestWithParam<bool> {};

TEST_P(FileMemoryLeaving, IsKept) {
  constexpr int64_t kBytes = (32 << 20) + 12345;
  FileAllocator allocator(testing::TempDir());
  Memory memory(allocator, kBytes);
  auto* bytes = static_cast<unsigned char*>(memory.data());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes) % (2 << 20), 0u);
  EXPECT_EQ(bytes[0], 0);
  EXPECT_EQ(bytes[kBytes - 1], 0);
  for (int64_t i = 0; i < kBytes; ++i) bytes[i] = static_cast<unsigned char>(i * 7 + i / 4096);
  const int64_t before = resident_file_bytes();
  PageMover mover("mover", allocator);
  const PageRange all = {bytes, kBytes};
  if (GetParam()) {
    mover.write_behind({&all, 1});
  } else {
    mover.let_go({&all, 1});
  }
  mover.wait();
  EXPECT_LT(resident_file_bytes(), before - (30 << 20));
  mover.read_ahead({&all, 1});
  mover.wait();
  EXPECT_GT(resident_file_bytes(), before - (2 << 20));
  int64_t wrong = 0;
  for (int64_t i = 0; i < kBytes; ++i)
    wrong += bytes[i] != static_cast<unsigned char>(i * 7 + i / 4096);
  EXPECT_EQ(wrong, 0);
  memory = Memory();
  EXPECT_LT(resident_file_bytes(), before - (30 << 20));
}

INSTANTIATE_TEST_SUITE_P(WrittenBehind, FileMemoryLeaving, testing::Bool());

TEST(FileMemory, LeavesNoFile) {
  const std::string dir = testing::TempDir() + "strata_file_memory";
  std::filesystem::create_directories(dir);
  FileAllocator allocator(dir);
  const Memory memory(allocator, 1 << 20);
  EXPECT_TRUE(std::filesystem::is_empty(dir));
  std::filesystem::remove_all(dir);
}

TEST(FileMemory, RefusesAFolderThatIsNone) {
  EXPECT_THROW(FileAllocator("/no/such/folder"), Error);
  struct statfs system{};
  if (::statfs("/dev/shm", &system) != 0 || system.f_type != TMPFS_MAGIC) return;
  try {
    FileAllocator allocator("/dev/shm");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("held in memory"), std::string::npos);
  }
}

TEST(FileMemory, SaysThatTheDiskIsFull) {
  FileAllocator allocator(testing::TempDir());
  EXPECT_THROW(Memory(allocator, int64_t{1} << 50), Error);
}

}  // namespace
}  // namespace strata
