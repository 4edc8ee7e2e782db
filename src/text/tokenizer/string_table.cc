// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/string_table.h"

#include <functional>

namespace strata::text {
namespace {

uint32_t hash_of(std::string_view key) {
  return static_cast<uint32_t>(std::hash<std::string_view>{}(key));
}

}  // namespace

StringTable::StringTable(size_t expected) {
  size_t num_slots = 16;
  while (num_slots < expected * 2) num_slots *= 2;
  slots_.resize(num_slots);
}

bool StringTable::insert(std::string_view key, int32_t id) {
  if ((num_keys_ + 1) * 3 > slots_.size() * 2) rehash(slots_.size() * 2);
  const uint32_t hash = hash_of(key);
  size_t i = hash & (slots_.size() - 1);
  for (; slots_[i].id != kNone; i = (i + 1) & (slots_.size() - 1)) {
    if (slots_[i].hash == hash && at(slots_[i]) == key) return false;
  }
  slots_[i] = {static_cast<uint32_t>(bytes_.size()), static_cast<uint32_t>(key.size()), hash, id};
  bytes_ += key;
  ++num_keys_;
  return true;
}

int32_t StringTable::find(std::string_view key) const {
  const uint32_t hash = hash_of(key);
  for (size_t i = hash & (slots_.size() - 1); slots_[i].id != kNone;
       i = (i + 1) & (slots_.size() - 1)) {
    if (slots_[i].hash == hash && at(slots_[i]) == key) return slots_[i].id;
  }
  return kNone;
}

void StringTable::rehash(size_t num_slots) {
  std::vector<Slot> old(num_slots);
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.id == kNone) continue;
    size_t i = slot.hash & (slots_.size() - 1);
    while (slots_[i].id != kNone) i = (i + 1) & (slots_.size() - 1);
    slots_[i] = slot;
  }
}

}  // namespace strata::text
