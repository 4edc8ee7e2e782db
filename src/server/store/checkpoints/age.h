// SPDX-License-Identifier: Apache-2.0
// The age v1 file format (age-encryption.org/v1, C2SP) with X25519 recipients: files that only the
// holders of the matching identities can read. Streamed: memory does not depend on the file's size.
// Any thread.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace strata::server {

// The public key of a recipient "age1..."; an Error{kInvalidArgument} says what is wrong with it.
std::string parse_age_recipient(const std::string& text);  // 32 bytes

// Writes `path` encrypted to `encrypted_path`, whole, synced or not at all. Recipients as parsed,
// at least one.
void age_encrypt_file(const std::string& path, const std::string& encrypted_path,
                      std::span<const std::string> recipients);

// The primitives of the format, so that a test can decrypt with them.
namespace age {

constexpr size_t kChunk = 64 << 10;
constexpr size_t kTag = 16;

std::string hkdf(std::string_view key, std::string_view salt, std::string_view info);  // 32 bytes
// Empty where the point has low order or a key is malformed.
std::string x25519(std::string_view secret, std::string_view public_key);
std::string x25519_public(std::string_view secret);
std::string seal(std::string_view key, std::string_view nonce, std::string_view plain);
// Throws Error where the tag does not fit.
std::string unseal(std::string_view key, std::string_view nonce, std::string_view sealed);
std::string chunk_nonce(uint64_t counter, bool is_last);  // 12 bytes
std::string base64_unpadded(std::string_view bytes);      // without padding
// The 32 bytes of a Bech32 text (BIP 173) with this prefix; throws Error.
std::string decode_bech32_key(const std::string& text, std::string_view prefix);

}  // namespace age
}  // namespace strata::server
