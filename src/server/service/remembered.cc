// SPDX-License-Identifier: Apache-2.0
#include "server/service/remembered.h"

#include <iterator>
#include <utility>

namespace strata::server {
namespace {

constexpr size_t kMostOfOne = 8192;    // far more than retries reach back
constexpr int64_t kEntryBytes = 256;   // with what maps and the heap add
constexpr int64_t kFirstBytes = 1024;  // of the first number of a thing

}  // namespace

const Answered* Remembered::find(const std::string& of, int64_t number) const {
  const auto numbers = entries_.find(of);
  if (numbers == entries_.end()) return nullptr;
  const auto found = numbers->second.find(number);
  return found == numbers->second.end() ? nullptr : &found->second.answered;
}

void Remembered::add(const std::string& tenant, const std::string& of, int64_t number,
                     Answered answered) {
  const auto [at, is_first] = entries_.try_emplace(of);
  std::map<int64_t, Entry>& numbers = at->second;
  if (numbers.size() >= kMostOfOne) numbers.erase(numbers.begin());
  const int64_t size = is_first ? kFirstBytes : kEntryBytes;
  SharedLimit::Share share = bytes_.take(tenant, size);
  while (!share && !numbers.empty()) {
    numbers.erase(numbers.begin());
    share = bytes_.take(tenant, size);
  }
  if (share) numbers[number] = {std::move(answered), std::move(share)};
  if (numbers.empty()) entries_.erase(at);
}

int64_t Remembered::forget(const std::string& of) {
  const auto found = entries_.find(of);
  if (found == entries_.end()) return 0;
  const int64_t count = std::ssize(found->second);
  entries_.erase(found);
  return count;
}

int64_t Remembered::forget_below(const std::string& prefix) {
  const auto found = entries_.lower_bound(prefix);
  return found != entries_.end() && found->first.starts_with(prefix) ? forget(found->first) : 0;
}

}  // namespace strata::server
