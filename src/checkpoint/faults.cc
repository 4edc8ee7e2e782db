// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/faults.h"

#include <fmt/format.h>

#include <utility>

#include "base/error.h"

namespace strata {

FaultList::FaultList(std::string where) : where_(std::move(where)) {}

void FaultList::add(std::string fault) {
  ++count_;
  if (shown_.size() < kMaxShown) shown_.push_back(std::move(fault));
}

void FaultList::throw_faults() const {
  if (count_ == 0) return;
  if (count_ == 1) throw Error(ErrorCode::kInvalidArgument, where_ + ": " + shown_.front());
  std::string text = fmt::format("{}: {} faults", where_, count_);
  for (const std::string& fault : shown_) text += "\n  " + fault;
  if (count_ > shown_.size()) text += fmt::format("\n  and {} more", count_ - shown_.size());
  throw Error(ErrorCode::kInvalidArgument, text);
}

}  // namespace strata
