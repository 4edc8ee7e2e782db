// SPDX-License-Identifier: Apache-2.0
#include "structured/compile_frames.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "base/clock.h"

namespace strata::structured {
namespace {

constexpr uint64_t kMostBytes = uint64_t{1} << 30;  // of a frame
constexpr double kLongestPoll = 3600;               // seconds

// Waits until the socket may be read or written.
FrameEnd wait_for(int fd, short events, double deadline) {
  while (true) {
    const double left = deadline - now_seconds();
    if (left <= 0) return FrameEnd::kLate;
    pollfd of = {.fd = fd, .events = events, .revents = 0};
    const int got = ::poll(&of, 1, static_cast<int>(std::ceil(std::min(left, kLongestPoll) * 1e3)));
    if (got > 0) return FrameEnd::kWhole;
    if (got < 0 && errno != EINTR) return FrameEnd::kClosed;
  }
}

FrameEnd send_bytes(int fd, const char* at, size_t count, double deadline) {
  while (count > 0) {
    if (const FrameEnd end = wait_for(fd, POLLOUT, deadline); end != FrameEnd::kWhole) return end;
    const ssize_t sent = ::send(fd, at, count, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (sent <= 0) return FrameEnd::kClosed;
    at += sent;
    count -= static_cast<size_t>(sent);
  }
  return FrameEnd::kWhole;
}

FrameEnd receive_bytes(int fd, char* at, size_t count, double deadline) {
  while (count > 0) {
    if (const FrameEnd end = wait_for(fd, POLLIN, deadline); end != FrameEnd::kWhole) return end;
    const ssize_t got = ::recv(fd, at, count, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got <= 0) return FrameEnd::kClosed;
    at += got;
    count -= static_cast<size_t>(got);
  }
  return FrameEnd::kWhole;
}

void append_number(std::string& out, uint64_t value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// False where there is none any more.
bool take_number(const std::string& from, size_t& at, uint64_t& value) {
  if (from.size() - at < sizeof value) return false;
  std::memcpy(&value, from.data() + at, sizeof value);
  at += sizeof value;
  return true;
}

}  // namespace

FrameEnd send_frame(int fd, const Frame& frame, double deadline) {
  std::string bytes;
  append_number(bytes, 0);  // the bytes behind this number
  for (const std::string& text : frame) {
    append_number(bytes, text.size());
    bytes += text;
  }
  const uint64_t count = bytes.size() - sizeof count;
  std::memcpy(bytes.data(), &count, sizeof count);
  return send_bytes(fd, bytes.data(), bytes.size(), deadline);
}

FrameEnd receive_frame(int fd, Frame& frame, double deadline) {
  uint64_t count = 0;
  const FrameEnd head = receive_bytes(fd, reinterpret_cast<char*>(&count), sizeof count, deadline);
  if (head != FrameEnd::kWhole) return head;
  if (count > kMostBytes) return FrameEnd::kClosed;
  std::string bytes(count, '\0');
  const FrameEnd rest = receive_bytes(fd, bytes.data(), bytes.size(), deadline);
  if (rest != FrameEnd::kWhole) return rest;
  frame.clear();
  uint64_t size = 0;
  for (size_t at = 0; take_number(bytes, at, size); at += size) {
    if (size > bytes.size() - at) return FrameEnd::kClosed;
    frame.push_back(bytes.substr(at, size));
  }
  return FrameEnd::kWhole;
}

}  // namespace strata::structured
