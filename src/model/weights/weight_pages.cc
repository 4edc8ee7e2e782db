// SPDX-License-Identifier: Apache-2.0
#include "model/weights/weight_pages.h"

#include <algorithm>

namespace strata::model {

constexpr int64_t kMostWritten = 64 << 20;

WeightPages::Place& WeightPages::ensure_place(const void* pass) {
  const auto found = std::find_if(places_.begin(), places_.end(),
                                  [&](const Place& place) { return place.pass == pass; });
  return found != places_.end() ? *found : places_.emplace_back(Place{.pass = pass});
}

void WeightPages::release_layer(int64_t layer) {
  for (const Place& place : places_) {
    if (place.layer == layer || place.next == layer) return;
  }
  queue_->let_go(pages_[static_cast<size_t>(layer)]);
  has_left_[static_cast<size_t>(layer)] = true;
}

void WeightPages::restore_evicted(int64_t layer) {
  if (layer >= 0 && has_left_[static_cast<size_t>(layer)]) read_ahead(layer);
}

void WeightPages::read_ahead(int64_t layer) {
  queue_->read_ahead(pages_[static_cast<size_t>(layer)]);
  has_left_[static_cast<size_t>(layer)] = false;
}

void WeightPages::enter_layer(const void* pass, int64_t layer, int64_t next) {
  const int64_t num_layers = std::ssize(pages_) - 1;
  Place& place = ensure_place(pass);
  const int64_t last = place.layer;
  place = {.pass = pass, .layer = layer, .next = next};
  if (last != layer && last >= 0) release_layer(last);
  // The embedding is done with, or the head; what reads it again finds it all the same.
  const bool first = next > layer ? layer == 0 : layer == num_layers - 1;
  if (first) queue_->may_leave(pages_.back());
  restore_evicted(layer);
  if (next >= 0) read_ahead(next);
}

void WeightPages::trim_written(int64_t bytes) {
  written_ += bytes;
  if (written_ < kMostWritten) return;
  written_ = 0;
  for (const std::vector<PageRange>& ranges : pages_) queue_->may_leave(ranges);
}

}  // namespace strata::model
