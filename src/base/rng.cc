// SPDX-License-Identifier: Apache-2.0
#include "base/rng.h"

#include <cmath>
#include <numbers>

namespace strata {

namespace {

// The top 53 bits of the two words as one number.
uint64_t top_53_bits(uint32_t high, uint32_t low) { return (uint64_t{high} << 32 | low) >> 11; }

}  // namespace

std::array<uint32_t, 4> Counter::words(uint64_t index) const {
  std::array<uint32_t, 4> c = {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                               static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)};
  uint32_t k0 = static_cast<uint32_t>(seed);
  uint32_t k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

double Counter::uniform(uint64_t index) const {
  const auto w = words(index);
  return static_cast<double>(top_53_bits(w[0], w[1])) * 0x1.0p-53;
}

double Counter::normal(uint64_t index) const {
  const auto w = words(index);
  const uint64_t a = top_53_bits(w[0], w[1]);
  const uint64_t b = top_53_bits(w[2], w[3]);
  const double u = (static_cast<double>(a) + 1.0) * 0x1.0p-53;  // (0, 1]
  const double v = static_cast<double>(b) * 0x1.0p-53;
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
}

uint64_t hash_name(const char* data, uint64_t size) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (uint64_t i = 0; i < size; ++i) {
    hash = (hash ^ static_cast<unsigned char>(data[i])) * 0x100000001b3ull;
  }
  return hash;
}

}  // namespace strata
