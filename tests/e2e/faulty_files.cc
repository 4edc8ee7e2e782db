// SPDX-License-Identifier: Apache-2.0
// A file layer that fails on demand, and a wall clock that jumps, for a whole program under test:
// loaded before the C library (LD_PRELOAD), it passes every call on but those that its controls
// tell it to fail or delay, or to hang at files of one name. The controls are a file, named by
// FAULTY_FILES, that faults.py maps and writes while the program runs. Only regular files and
// folders are touched, never sockets or pipes.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

namespace {

// As struct.pack("<8iqii128s", ...) in faults.py writes it. A fault comes once in `..._every`
// calls; 0: never.
struct Controls {
  int32_t write_every, write_errno;
  int32_t sync_every, sync_errno;
  int32_t rename_every, rename_errno;
  int32_t create_every;  // fails with ENOSPC
  int32_t sync_delay;    // ms of each fsync
  int64_t clock_offset;  // s that the wall clock is ahead
  int32_t read_delay;    // ms of each pread
  int32_t hang;          // ms of each open and read of ...
  char hanging[128];     // ... files whose path ends so, as long as it does; "": none
};
static_assert(sizeof(Controls) == 176);

const volatile Controls* map_controls() {
  static const Controls none = {};
  const char* path = getenv("FAULTY_FILES");
  if (path == nullptr) return &none;
  const auto open_real = reinterpret_cast<int (*)(const char*, int, ...)>(dlsym(RTLD_NEXT, "open"));
  const int file = open_real(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return &none;
  void* memory = mmap(nullptr, sizeof(Controls), PROT_READ, MAP_SHARED, file, 0);
  close(file);
  return memory == MAP_FAILED ? &none : static_cast<const volatile Controls*>(memory);
}

const volatile Controls& controls() {
  static const volatile Controls* const mapped = map_controls();
  return *mapped;
}

// Once in `every`, evenly and the same each time.
bool is_due(int32_t every, std::atomic<uint32_t>& calls) {
  return every > 0 && ++calls % static_cast<uint32_t>(every) == 0;
}

std::atomic<uint32_t> num_writes, num_syncs, num_renames, num_creates;

bool is_file(int fd) {
  struct stat status;
  return fstat(fd, &status) == 0 && (S_ISREG(status.st_mode) || S_ISDIR(status.st_mode));
}

template <typename Call>
Call* next_of(const char* name) {
  return reinterpret_cast<Call*>(dlsym(RTLD_NEXT, name));
}

bool fails_write(int fd) {
  if (!is_file(fd) || !is_due(controls().write_every, num_writes)) return false;
  errno = controls().write_errno;
  return true;
}

void wait(int32_t milliseconds) {
  if (milliseconds <= 0) return;
  const timespec time = {.tv_sec = milliseconds / 1000,
                         .tv_nsec = (milliseconds % 1000) * 1'000'000L};
  nanosleep(&time, nullptr);
}

bool ends_as_told(const char* path) {
  char told[sizeof(Controls::hanging)];
  for (size_t i = 0; i < sizeof told; ++i) told[i] = controls().hanging[i];
  told[sizeof told - 1] = '\0';
  const size_t size = strlen(path), end = strlen(told);
  return end > 0 && size >= end && strcmp(path + size - end, told) == 0;
}

void hang_at(const char* path) {
  for (int32_t waited = 0; waited < controls().hang && ends_as_told(path); waited += 10) wait(10);
}

// No file but those that are named; what is open has its path from the kernel.
void hang_of(int fd) {
  if (controls().hang <= 0 || !is_file(fd)) return;
  char link[32], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t size = readlink(link, path, sizeof path - 1);
  if (size < 0) return;
  path[size] = '\0';
  hang_at(path);
}

bool fails_sync(int fd) {
  if (!is_file(fd)) return false;
  wait(controls().sync_delay);
  if (!is_due(controls().sync_every, num_syncs)) return false;
  errno = controls().sync_errno;
  return true;
}

bool fails_rename() {
  if (!is_due(controls().rename_every, num_renames)) return false;
  errno = controls().rename_errno;
  return true;
}

bool fails_create(int flags) {
  if ((flags & O_CREAT) == 0 || !is_due(controls().create_every, num_creates)) return false;
  errno = ENOSPC;
  return true;
}

mode_t mode_of(int flags, va_list arguments) {
  return (flags & O_CREAT) != 0 ? static_cast<mode_t>(va_arg(arguments, int)) : 0;
}

}  // namespace

extern "C" {

ssize_t write(int fd, const void* data, size_t size) {
  static const auto real = next_of<ssize_t(int, const void*, size_t)>("write");
  return fails_write(fd) ? -1 : real(fd, data, size);
}

ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
  static const auto real = next_of<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  return fails_write(fd) ? -1 : real(fd, data, size, offset);
}

ssize_t pwrite64(int fd, const void* data, size_t size, off64_t offset) {
  static const auto real = next_of<ssize_t(int, const void*, size_t, off64_t)>("pwrite64");
  return fails_write(fd) ? -1 : real(fd, data, size, offset);
}

ssize_t read(int fd, void* data, size_t size) {
  static const auto real = next_of<ssize_t(int, void*, size_t)>("read");
  hang_of(fd);
  return real(fd, data, size);
}

ssize_t pread(int fd, void* data, size_t size, off_t offset) {
  static const auto real = next_of<ssize_t(int, void*, size_t, off_t)>("pread");
  wait(controls().read_delay);
  hang_of(fd);
  return real(fd, data, size, offset);
}

ssize_t pread64(int fd, void* data, size_t size, off64_t offset) {
  static const auto real = next_of<ssize_t(int, void*, size_t, off64_t)>("pread64");
  wait(controls().read_delay);
  hang_of(fd);
  return real(fd, data, size, offset);
}

int fsync(int fd) {
  static const auto real = next_of<int(int)>("fsync");
  return fails_sync(fd) ? -1 : real(fd);
}

int fdatasync(int fd) {
  static const auto real = next_of<int(int)>("fdatasync");
  return fails_sync(fd) ? -1 : real(fd);
}

int rename(const char* from, const char* to) noexcept {
  static const auto real = next_of<int(const char*, const char*)>("rename");
  return fails_rename() ? -1 : real(from, to);
}

int open(const char* path, int flags, ...) {
  static const auto real = next_of<int(const char*, int, ...)>("open");
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  hang_at(path);
  return fails_create(flags) ? -1 : real(path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  static const auto real = next_of<int(const char*, int, ...)>("open64");
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  hang_at(path);
  return fails_create(flags) ? -1 : real(path, flags, mode);
}

int openat(int folder, const char* path, int flags, ...) {
  static const auto real = next_of<int(int, const char*, int, ...)>("openat");
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  hang_at(path);
  return real(folder, path, flags, mode);
}

int clock_gettime(clockid_t clock, struct timespec* out) noexcept {
  static const auto real = next_of<int(clockid_t, struct timespec*)>("clock_gettime");
  const int done = real(clock, out);
  if (done == 0 && clock == CLOCK_REALTIME) out->tv_sec += controls().clock_offset;
  return done;
}

}  // extern "C"
