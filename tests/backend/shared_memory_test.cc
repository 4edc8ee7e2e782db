// SPDX-License-Identifier: Apache-2.0
// Memory that processes of a machine have together: filled once, and then nobody's writes are
// another's.
#include "backend/shared_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "base/error.h"

namespace strata {
namespace {

constexpr int64_t kBytes = (3 << 20) + 12345;

unsigned char byte_at(int64_t i) { return static_cast<unsigned char>(i * 7 + i / 4096); }

int64_t num_wrong(const Memory& memory) {
  const auto* bytes = static_cast<const unsigned char*>(memory.data());
  int64_t wrong = 0;
  for (int64_t i = 0; i < memory.size(); ++i) wrong += bytes[i] != byte_at(i);
  return wrong;
}

// What the process behind this one does; its exit code is what it finds wrong.
template <typename Body>
int exit_code_of_child(Body body) {
  const pid_t child = ::fork();
  if (child == 0) {
    int code = 99;
    try {
      code = body();
    } catch (...) {
    }
    ::_exit(code);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

class SharedMemoryTest : public testing::Test {
 protected:
  SharedMemoryTest() : memory_(owner_, kBytes) {
    auto* bytes = static_cast<unsigned char*>(memory_.data());
    for (int64_t i = 0; i < kBytes; ++i) zeroes_ += bytes[i] == 0;
    for (int64_t i = 0; i < kBytes; ++i) bytes[i] = byte_at(i);
    place_ = owner_.publish();
  }

  int64_t zeroes_ = 0;
  SharedMemory owner_;
  Memory memory_;
  SharedPlace place_;
};

TEST_F(SharedMemoryTest, IsReadByOtherProcesses) {
  EXPECT_EQ(zeroes_, kBytes);
  EXPECT_FALSE(owner_.is_filled());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory_.data()) % (2 << 20), 0u);
  const int code = exit_code_of_child([&] {
    SharedMemory theirs(place_);
    const Memory memory(theirs, kBytes);
    if (!theirs.is_filled() || reinterpret_cast<uintptr_t>(memory.data()) % (2 << 20) != 0)
      return 1;
    return num_wrong(memory) == 0 ? 0 : 2;
  });
  EXPECT_EQ(code, 0);
}

TEST_F(SharedMemoryTest, KeepsItsWritesFromOthers) {
  SharedMemory theirs(place_);
  const Memory other(theirs, kBytes);
  static_cast<unsigned char*>(memory_.data())[5] ^= 1;  // the owner's
  EXPECT_EQ(num_wrong(other), 0);
  static_cast<unsigned char*>(other.data())[4096 + 5] ^= 1;
  EXPECT_EQ(num_wrong(memory_), 1);
  EXPECT_EQ(num_wrong(other), 1);
}

// By a process that has ended since.
TEST(SharedMemory, OutlivesWhoFilledIt) {
  int told[2], may_end[2];
  ASSERT_EQ(::pipe(told), 0);
  ASSERT_EQ(::pipe(may_end), 0);
  std::unique_ptr<SharedMemory> theirs;
  const pid_t child = ::fork();
  if (child == 0) {
    SharedMemory owner;
    Memory memory(owner, kBytes);
    auto* bytes = static_cast<unsigned char*>(memory.data());
    for (int64_t i = 0; i < kBytes; ++i) bytes[i] = byte_at(i);
    const SharedPlace place = owner.publish();
    char end = 0;
    const bool ok =
        ::write(told[1], &place, sizeof place) == sizeof place && ::read(may_end[0], &end, 1) == 1;
    ::_exit(ok ? 0 : 1);
  }
  SharedPlace place;
  ASSERT_EQ(::read(told[0], &place, sizeof place), static_cast<ssize_t>(sizeof place));
  theirs = std::make_unique<SharedMemory>(place);
  ASSERT_EQ(::write(may_end[1], "x", 1), 1);
  int status = 1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  {
    const Memory memory(*theirs, kBytes);
    EXPECT_EQ(num_wrong(memory), 0);
  }
  for (const int end : {told[0], told[1], may_end[0], may_end[1]}) ::close(end);
}

// Nor by who opens it to write.
TEST_F(SharedMemoryTest, IsChangedByNobody) {
  const std::string path =
      "/proc/" + std::to_string(place_.process) + "/fd/" + std::to_string(place_.descriptor);
  const int file = ::open(path.c_str(), O_RDWR);
  ASSERT_GE(file, 0);
  EXPECT_LT(::pwrite(file, "x", 1, 0), 0);
  EXPECT_LT(::ftruncate(file, 0), 0);
  EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0), MAP_FAILED);
  ::close(file);
  EXPECT_EQ(num_wrong(memory_), 0);
}

TEST_F(SharedMemoryTest, IsRefusedWhereItIsNotWhatWasPublished) {
  SharedPlace gone = place_;
  gone.descriptor = 1 << 20;
  EXPECT_THROW(SharedMemory{gone}, Error);
  SharedPlace other = place_;
  other.file ^= 1;
  EXPECT_THROW(SharedMemory{other}, Error);
  SharedPlace elsewhere = place_;
  elsewhere.device ^= 1;
  EXPECT_THROW(SharedMemory{elsewhere}, Error);
  SharedMemory smaller(place_);
  EXPECT_THROW(smaller.allocate(kBytes - 1), Error);
  SharedPlace shorter = place_;
  shorter.bytes -= 1;
  EXPECT_THROW(SharedMemory{shorter}, Error);
}

// More than any machine has.
TEST(SharedMemory, IsRefusedWhereThereIsNone) {
  SharedMemory memory;
  EXPECT_THROW(memory.allocate(int64_t{1} << 61), Error);
}

}  // namespace
}  // namespace strata
