// SPDX-License-Identifier: Apache-2.0
#include "text/stop_finder.h"

#include <algorithm>
#include <utility>

namespace strata::text {

StopFinder::StopFinder(std::span<const std::string> stops) : stops_(stops) {
  for (const std::string& stop : stops_) longest_ = std::max(longest_, stop.size());
}

size_t StopFinder::search_stops(std::string_view piece) {
  held_.append(piece);
  size_t first = std::string::npos;
  for (const std::string& stop : stops_) {
    if (!stop.empty()) first = std::min(first, held_.find(stop));
  }
  found_ = first != std::string::npos;
  return first;
}

std::string StopFinder::push(std::string_view piece) {
  if (found_) return "";
  const size_t first = search_stops(piece);
  if (found_) return held_.substr(0, first);
  std::string certain = held_.substr(0, held_.size() - size_of_started_stop());
  held_.erase(0, certain.size());
  return certain;
}

size_t StopFinder::size_of_started_stop() const {
  size_t keep = 0;
  for (const std::string& stop : stops_) {
    if (stop.empty()) continue;
    for (size_t size = std::min(stop.size() - 1, held_.size()); size > keep; --size) {
      if (std::string_view(held_).substr(held_.size() - size) ==
          std::string_view(stop).substr(0, size))
        keep = size;
    }
  }
  return keep;
}

std::string StopFinder::flush() { return found_ ? "" : std::exchange(held_, ""); }

bool StopFinder::detect_stop(std::string_view piece) {
  if (found_) return true;
  search_stops(piece);
  if (!found_ && held_.size() >= longest_)
    held_.erase(0, held_.size() - std::max<size_t>(1, longest_) + 1);
  return found_;
}

}  // namespace strata::text
