// SPDX-License-Identifier: Apache-2.0
// The few primitives of cryptography that the house needs, from OpenSSL: hashes, MACs, random ids,
// and comparison in constant time. Any thread; no state.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace strata {

std::string sha256(std::string_view bytes);  // 32 bytes
// The hash of bytes that come in pieces.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  void add(std::string_view bytes);
  std::string finish();  // once

 private:
  struct State;
  std::unique_ptr<State> state_;
};
std::string hmac_sha256(std::string_view key, std::string_view bytes);  // 32 bytes
std::string random_bytes(size_t count);  // from the system's generator

std::string to_hex(std::string_view bytes);     // lower case
std::string base64url(std::string_view bytes);  // without padding

// The time depends on the lengths alone.
bool equal_constant_time(std::string_view a, std::string_view b);

// 128 random bits in hex: a name that nobody can guess and that is safe in a path and a URL.
std::string random_id();
// A seed for who gave none.
uint64_t random_seed();

}  // namespace strata
