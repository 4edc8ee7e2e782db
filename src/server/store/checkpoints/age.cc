// SPDX-License-Identifier: Apache-2.0
#include "server/store/checkpoints/age.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/crypto.h"
#include "base/error.h"
#include "base/files.h"

namespace strata::server {
namespace {

std::string x25519_stanza(std::string_view file_key, const std::string& recipient) {
  const std::string secret = random_bytes(32);
  const std::string share = age::x25519_public(secret);
  const std::string shared = age::x25519(secret, recipient);
  CHECK(!shared.empty(), "recipients are checked when they are parsed");
  const std::string key = age::hkdf(shared, share + recipient, "age-encryption.org/v1/X25519");
  return fmt::format("-> X25519 {}\n{}\n", age::base64_unpadded(share),
                     age::base64_unpadded(age::seal(key, std::string(12, '\0'), file_key)));
}

std::string age_header(std::string_view file_key, std::span<const std::string> recipients) {
  std::string text = "age-encryption.org/v1\n";
  for (const std::string& recipient : recipients) text += x25519_stanza(file_key, recipient);
  text += "---";
  const std::string mac = hmac_sha256(age::hkdf(file_key, "", "header"), text);
  return text + " " + age::base64_unpadded(mac) + "\n";
}

// The last chunk is marked as such and is empty only when the file is.
void append_sealed_chunks(const ReadOnlyFile& plain, std::string_view key, AtomicFile& out) {
  std::string chunk;
  uint64_t counter = 0;
  int64_t done = 0;
  do {
    const auto size = std::min<int64_t>(plain.size() - done, age::kChunk);
    chunk.resize(static_cast<size_t>(size));
    plain.read_at(done, std::as_writable_bytes(std::span(chunk)));
    done += size;
    out.append(age::seal(key, age::chunk_nonce(counter++, done == plain.size()), chunk));
  } while (done < plain.size());
}

}  // namespace

std::string parse_age_recipient(const std::string& text) {
  const std::string key = age::decode_bech32_key(text, "age");
  if (age::x25519(random_bytes(32), key).empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("age: recipient '{}...' is no usable X25519 key", text.substr(0, 8)));
  }
  return key;
}

void age_encrypt_file(const std::string& path, const std::string& encrypted_path,
                      std::span<const std::string> recipients) {
  CHECK(!recipients.empty());
  const ReadOnlyFile plain(path);
  AtomicFile out(encrypted_path);
  const std::string file_key = random_bytes(16);
  out.append(age_header(file_key, recipients));
  const std::string nonce = random_bytes(16);
  out.append(nonce);
  append_sealed_chunks(plain, age::hkdf(file_key, nonce, "payload"), out);
  out.commit();
}

}  // namespace strata::server
