// SPDX-License-Identifier: Apache-2.0
// StopFinder: whether text that comes in pieces has come to hold one of the stop texts. Borrows
// them; empty ones never stop. A stream pushes pieces and sends what it gets; others ask
// detect_stop.
#pragma once
#include <span>
#include <string>
#include <string_view>

namespace strata::text {

class StopFinder {
 public:
  explicit StopFinder(std::span<const std::string> stops);

  // The text that is certain by now: what may be the start of a stop is held back. After a stop was
  // found: what stood before it, then nothing.
  std::string push(std::string_view piece);
  // What was held back, when no more comes.
  std::string flush();
  // As push(), for the answer alone: true once a stop was found.
  bool detect_stop(std::string_view piece);
  [[nodiscard]] bool found() const { return found_; }

 private:
  // Where the first stop begins in what is held, or npos.
  size_t search_stops(std::string_view piece);
  [[nodiscard]] size_t size_of_started_stop() const;  // in bytes, at the end of what is held

  std::span<const std::string> stops_;
  size_t longest_ = 0;
  std::string held_;
  bool found_ = false;
};

}  // namespace strata::text
