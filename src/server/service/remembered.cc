// SPDX-License-Identifier: Apache-2.0
#include "server/service/remembered.h"

#include <iterator>
#include <utility>

namespace strata::server {
namespace {

constexpr size_t kMostOfOne = 8192;   // answered: far more than retries reach back
constexpr int64_t kEntryBytes = 256;  // with what maps and the heap add
constexpr int64_t kThingBytes = 768;

}  // namespace

const KnownRequest* Remembered::find(const RequestNumber& number) const {
  const auto thing = things_.find(number.of);
  if (thing == things_.end()) return nullptr;
  for (const auto* entries : {&thing->second.waiting, &thing->second.answered}) {
    const auto found = entries->find(number.number);
    if (found != entries->end()) return &found->second.known;
  }
  return nullptr;
}

void Remembered::add(const RequestNumber& number, KnownRequest known) {
  things_[number.of].waiting[number.number] = {std::move(known), {}};
}

void Remembered::settle(const std::string& tenant, const RequestNumber& number,
                        const std::string& request) {
  const auto thing = things_.find(number.of);
  if (thing == things_.end()) return;
  Numbers& numbers = thing->second;
  const auto found = numbers.waiting.find(number.number);
  if (found == numbers.waiting.end() || found->second.known.request != request) return;
  auto entry = numbers.waiting.extract(found);
  if (number.number == kMaking || take_space(tenant, numbers, entry.mapped().bytes))
    numbers.answered.insert(std::move(entry));
  if (numbers.waiting.empty() && numbers.answered.empty()) things_.erase(thing);
}

bool Remembered::forget_oldest(Numbers& numbers) {
  const auto oldest = numbers.answered.upper_bound(kMaking);
  if (oldest == numbers.answered.end()) return false;
  numbers.answered.erase(oldest);
  return true;
}

bool Remembered::take_space(const std::string& tenant, Numbers& numbers,
                            SharedLimit::Share& bytes) {
  if (numbers.answered.size() >= kMostOfOne) forget_oldest(numbers);
  do {
    if (!numbers.bytes) numbers.bytes = bytes_.take(tenant, kThingBytes);
    if (numbers.bytes) bytes = bytes_.take(tenant, kEntryBytes);
  } while (!bytes && forget_oldest(numbers));
  if (!bytes) numbers.bytes = {};  // none of the answered takes any
  return static_cast<bool>(bytes);
}

int64_t Remembered::forget(const std::string& of) {
  const auto found = things_.find(of);
  if (found == things_.end()) return 0;
  const int64_t count = std::ssize(found->second.waiting) + std::ssize(found->second.answered);
  things_.erase(found);
  return count;
}

int64_t Remembered::forget_below(const std::string& prefix) {
  const auto found = things_.lower_bound(prefix);
  return found != things_.end() && found->first.starts_with(prefix) ? forget(found->first) : 0;
}

}  // namespace strata::server
