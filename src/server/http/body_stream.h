// SPDX-License-Identifier: Apache-2.0
// BodyStream: the body of a response that is sent as it is made, server-sent events most likely.
// The handler fills it, the connection empties it, and both keep it. What was pushed and has not
// been sent is bounded, and counts as a response of its tenant. I/O thread only.
//   auto body = std::make_shared<BodyStream>();  response.stream = body;  respond(response);
//   ... body->offer_bytes("data: ...\n\n") ...  body->finish();
#pragma once
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "base/account.h"

namespace strata::server {

class BodyStream {
 public:
  static constexpr size_t kMostWaiting = 1 << 20;  // bytes

  BodyStream() = default;
  BodyStream(const BodyStream&) = delete;
  BodyStream& operator=(const BodyStream&) = delete;

  // The handler's side. False when nobody reads any more: the peer hung up, or reads so slowly that
  // its bytes find no space here; nothing is sent after that.
  // `expected`: of what reserve_expected() counted, how much these bytes are instead of.
  bool offer_bytes(std::string_view bytes, size_t expected = 0);
  // Counts as if it waited here what bytes are yet to be made of. False as offer_bytes().
  bool reserve_expected(size_t bytes);
  // The body is whole.
  void finish();
  [[nodiscard]] bool closed() const { return closed_; }
  // Nothing more may be pushed.
  [[nodiscard]] bool ends() const { return closed_ || finished_; }
  // Runs `then` once, should the peer be lost before finish(); never in the midst of a
  // offer_bytes().
  void on_close(std::function<void()> then) { on_close_ = std::move(then); }

  // The connection's side. What is held for what waits here, from now until close(), at the charge
  // of the request, which holds bytes_to_hold() already.
  [[nodiscard]] int64_t bytes_to_hold() const;
  void count_at(Charge& charge) { charge_ = &charge; }
  // Runs `wake` whenever something has changed.
  void attach(std::function<void()> wake) { wake_ = std::move(wake); }
  // What waits, at most so many bytes; it counts until release_sent_bytes().
  std::string pop_bytes(size_t most);
  void release_sent_bytes();
  [[nodiscard]] bool finished() const { return finished_ && waiting_.empty(); }
  // Nobody reads any more.
  void close();

 private:
  [[nodiscard]] bool try_grow(size_t bytes);
  void abandon();
  void wake() const {
    if (wake_) wake_();
  }

  std::string waiting_;
  size_t taken_ = 0;     // bytes, not sent yet
  size_t expected_ = 0;  // bytes
  Charge* charge_ = nullptr;
  bool finished_ = false;
  bool closed_ = false;
  std::function<void()> on_close_, wake_;
};

}  // namespace strata::server
