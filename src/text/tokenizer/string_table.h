// SPDX-License-Identifier: Apache-2.0
// StringTable: text -> id by hashing, for a few hundred thousand short strings. Built once, then
// read by any thread. Open addressing; the strings lie in one buffer.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace strata::text {

class StringTable {
 public:
  static constexpr int32_t kNone = -1;

  explicit StringTable(size_t expected = 0);
  // False when the string is there already, with whatever id; then nothing changes.
  bool insert(std::string_view key, int32_t id);
  // The id, or kNone.
  [[nodiscard]] int32_t find(std::string_view key) const;

 private:
  struct Slot {
    uint32_t begin = 0;
    uint32_t size = 0;
    uint32_t hash = 0;
    int32_t id = kNone;
  };
  void rehash(size_t num_slots);
  [[nodiscard]] std::string_view at(const Slot& slot) const {
    return std::string_view(bytes_).substr(slot.begin, slot.size);
  }

  std::vector<Slot> slots_;
  std::string bytes_;
  size_t num_keys_ = 0;
};

}  // namespace strata::text
