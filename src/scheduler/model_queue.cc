// SPDX-License-Identifier: Apache-2.0
#include "scheduler/model_queue.h"

#include <algorithm>

#include "base/check.h"

namespace strata::scheduler {

void ModelQueue::add(const CommandPtr& command, double now) {
  CHECK(awaits(command->seq_id), command->seq_id);
  const bool blocked = has_gap();
  waiting_[command->seq_id] = command;
  if (!blocked) blocked_since_ = now;
  update_missing();
}

void ModelQueue::mark_refused(int64_t seq_id, double now) {
  if (!awaits(seq_id)) return;
  refused_.insert(seq_id);
  skip_refused(now);
  if (refused_.size() <= kMostRefused) return;
  const auto furthest = std::prev(refused_.end());
  missing_ = std::min(missing_, *furthest);
  refused_.erase(furthest);
}

// Steps over refused numbers; a gap that opens now is counted from now.
void ModelQueue::skip_refused(double now) {
  const int64_t before = next_;
  while (!refused_.empty() && *refused_.begin() == next_) {
    refused_.erase(refused_.begin());
    ++next_;
  }
  if (next_ != before) blocked_since_ = now;
  update_missing();
}

// Goes over each number once.
void ModelQueue::update_missing() {
  missing_ = std::max(missing_, next_);
  while (waiting_.contains(missing_) || refused_.contains(missing_)) ++missing_;
}

CommandPtr ModelQueue::ready() const {
  if (waiting_.empty() || waiting_.begin()->first != next_) return nullptr;
  return waiting_.begin()->second;
}

size_t ModelQueue::num_ready() const {
  size_t count = 0;
  int64_t expected = next_;
  auto refused = refused_.begin();
  for (const auto& [seq, command] : waiting_) {
    for (; refused != refused_.end() && *refused == expected; ++refused) ++expected;
    if (seq != expected++) break;
    ++count;
  }
  return count;
}

void ModelQueue::pop(double now) {
  waiting_.erase(next_);
  ++next_;
  blocked_since_ = now;
  skip_refused(now);
}

std::optional<double> ModelQueue::gap_since() const {
  if (!has_gap()) return std::nullopt;
  return blocked_since_;
}

std::vector<CommandPtr> ModelQueue::give_up_gap(double now) {
  if (!has_gap()) return {};
  return take_all(now);
}

std::vector<CommandPtr> ModelQueue::take_all(double now) {
  std::vector<CommandPtr> out;
  for (auto& [seq, command] : waiting_) out.push_back(std::move(command));
  if (!waiting_.empty()) next_ = waiting_.rbegin()->first + 1;
  waiting_.clear();
  refused_.erase(refused_.begin(), refused_.lower_bound(next_));
  blocked_since_ = now;
  skip_refused(now);
  return out;
}

}  // namespace strata::scheduler
