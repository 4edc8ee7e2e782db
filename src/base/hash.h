// SPDX-License-Identifier: Apache-2.0
// Hash: whether two values are the same, all but certainly, and the same on every machine. Of no
// use against who wants two to agree.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace strata {

// FNV-1a, eight bytes at a time where there are eight.
class Hash {
 public:
  [[nodiscard]] static uint64_t of(std::string_view bytes) {
    Hash hash;
    hash.mix_bytes(bytes.data(), bytes.size());
    return hash.value();
  }
  void mix_bytes(const void* data, size_t size) {
    const char* at = static_cast<const char*>(data);
    for (; size >= 8; size -= 8, at += 8) {
      uint64_t word = 0;
      std::memcpy(&word, at, 8);
      mix(word);
    }
    for (; size > 0; --size, ++at) mix(static_cast<unsigned char>(*at));
  }
  template <typename T>
  void mix_values(const std::vector<T>& items) {
    mix(items.size());
    mix_bytes(items.data(), items.size() * sizeof(T));
  }
  void mix(uint64_t word) {
    hash_ = (hash_ ^ word) * 0x100000001b3ULL;
    hash_ ^= hash_ >> 29;
  }
  [[nodiscard]] uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0xcbf29ce484222325ULL;
};

}  // namespace strata
