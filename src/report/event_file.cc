// SPDX-License-Identifier: Apache-2.0
#include "report/event_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/file_io.h"
#include "base/files.h"

namespace strata::report {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78u;  // reflected
constexpr uint32_t kMask = 0xa282ead8u;
constexpr int kMostNames = 1000;

// Fields of tensorflow.Event, of Summary in it, of Summary.Value in that, and of SessionLog.
constexpr uint32_t kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;
constexpr uint32_t kValue = 1, kTag = 1, kSimpleValue = 2, kStatus = 1;
constexpr uint64_t kStart = 1;
// How protobuf writes them.
enum Wire : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

constexpr std::array<uint32_t, 256> make_crc_table() {
  std::array<uint32_t, 256> table = {};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1u) != 0 ? kPolynomial : 0u);
    table[i] = crc;
  }
  return table;
}

template <typename T>
std::string little_endian_bytes(T value) {
  std::string bytes(sizeof(T), '\0');
  for (size_t i = 0; i < sizeof(T); ++i) bytes[i] = static_cast<char>(value >> (8 * i) & 0xFF);
  return bytes;
}

std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

std::string field(uint32_t number, Wire wire, const std::string& bytes) {
  return varint(number << 3 | wire) + bytes;
}
std::string message_field(uint32_t number, const std::string& bytes) {
  return field(number, kBytes, varint(bytes.size()) + bytes);
}

std::string event_head(double seconds, int64_t step) {
  std::string bytes =
      field(kWallTime, kFixed64, little_endian_bytes(std::bit_cast<uint64_t>(seconds)));
  if (step != 0) bytes += field(kStep, kVarint, varint(static_cast<uint64_t>(step)));
  return bytes;
}

uint32_t masked(uint32_t crc) { return (crc >> 15 | crc << 17) + kMask; }

// None of texts, and of what is too large for a float.
std::optional<float> finite_number(const Metric& metric) {
  float number = 0;
  if (const auto* whole = std::get_if<int64_t>(&metric.value)) {
    number = static_cast<float>(static_cast<double>(*whole));
  } else if (const auto* real = std::get_if<double>(&metric.value)) {
    number = static_cast<float>(*real);
  } else {
    return {};
  }
  return std::isfinite(number) ? std::optional<float>(number) : std::nullopt;
}

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

[[noreturn]] void fail(const std::string& path, const char* what) {
  throw Error(ErrorCode::kIo, fmt::format("{}: {}: {}", path, what, std::strerror(errno)));
}

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 && name[0] != '\0' ? name : "localhost";
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = make_crc_table();
  uint32_t crc = ~0u;
  for (const char c : bytes) crc = crc >> 8 ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 0xFF];
  return ~crc;
}

std::string tf_record(std::string_view payload) {
  const std::string length = little_endian_bytes(static_cast<uint64_t>(payload.size()));
  return length + little_endian_bytes(masked(crc32c(length))) + std::string(payload) +
         little_endian_bytes(masked(crc32c(payload)));
}

std::string version_event(double seconds) {
  return event_head(seconds, 0) + message_field(kFileVersion, "brain.Event:2");
}

std::string start_event(double seconds, int64_t step) {
  return event_head(seconds, step) +
         message_field(kSessionLog, field(kStatus, kVarint, varint(kStart)));
}

std::string scalar_event(double seconds, int64_t step, std::span<const Metric> metrics) {
  std::string summary;
  for (const Metric& metric : metrics) {
    const std::optional<float> number = finite_number(metric);
    if (!number) continue;
    const auto bits = std::bit_cast<uint32_t>(*number);
    summary += message_field(kValue, message_field(kTag, std::string(metric.name)) +
                                         field(kSimpleValue, kFixed32, little_endian_bytes(bits)));
  }
  return event_head(seconds, step) + message_field(kSummary, summary);
}

// Delegates: the destructor closes the file where its first record cannot be written.
EventFile::EventFile(const std::string& dir) : EventFile() {
  make_folders(dir);
  const double now = wall_seconds();
  create_file(dir, now);
  write(tf_record(version_event(now)));
}

void EventFile::create_file(const std::string& dir, double now) {
  // TensorBoard goes through the files of a folder in the order of their names.
  for (int attempt = 0; fd_ < 0; ++attempt) {
    path_ = fmt::format("{}/events.out.tfevents.{:010d}.{}.{}.{}", dir, static_cast<int64_t>(now),
                        host_name(), ::getpid(), attempt);
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd_ < 0 && (errno != EEXIST || attempt == kMostNames)) fail(path_, "create");
  }
}

EventFile::~EventFile() {
  if (fd_ >= 0) ::close(fd_);
}

EventFile::EventFile(EventFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

void EventFile::write(const std::string& bytes) {
  write_all(fd_, std::as_bytes(std::span(bytes)), path_);
}

void EventFile::append(int64_t step, std::span<const Metric> metrics) {
  write(tf_record(scalar_event(wall_seconds(), step, metrics)));
}

void EventFile::start_at(int64_t step) { write(tf_record(start_event(wall_seconds(), step))); }

void EventFile::sync() {
  if (::fdatasync(fd_) != 0) fail(path_, "fdatasync");
}

}  // namespace strata::report
