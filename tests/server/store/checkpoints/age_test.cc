// SPDX-License-Identifier: Apache-2.0
#include "server/store/checkpoints/age.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "base/crypto.h"
#include "tests/base/temp_dir.h"

namespace strata::server {
namespace {

using strata::testing::error_of;
using strata::testing::read_bytes;
using strata::testing::TempDir;
using strata::testing::write_bytes;
using ::testing::HasSubstr;

// Made by PyPI's pyrage 1.4.0: an identity, its recipient, and a text encrypted to it.
constexpr const char* kIdentity =
    "age-secret-key-1gkaageymp8w4k2lcdtqpfgv2quhzvnmn0l6v0ffzh9layg4wnwgshkeege";
constexpr const char* kRecipient = "age10r2wldt4r0sstx27r0a49f3prp0c4qvjaafet24rulccjtzhtszqaz4qn3";
constexpr const char* kEncrypted =
    "YWdlLWVuY3J5cHRpb24ub3JnL3YxCi0+IFgyNTUxOSAwQ2plZk9VNVVXeHZLZjhlaWdPRnVqV24xc0xMY2VLZ0VBdFBJRT"
    "lBanlBCnZrazZDMjF2c21KVVdSbGtzNWJUWHRaS1NsdjJUZmFCa0VUSTJVQW1qVk0KLT4gUkZZQ2UtZ3JlYXNlIE9HSEtI"
    "CkJCSExyYnZoZ3RxTkw2UWg4YmZiTWNYb1RNV0JsakxtSi9ZY3U3OURtVjd5cHFLT0VheityV1R4OW1SbWVaM3oKYnVSUH"
    "dyY0ZLRG10QmR3cTRrcwotLS0gdlNqOEFJZ3ZMVXFmVWtEMU9OYmJQYlM1TGxKb2VxRmYySmZOZFdFNUNxTQpM99aecOPp"
    "lbq1tGaquK5gDm3VpvvIgCT2HSU/NhJoo+evLiVkM0wnprbFFMn5JRYc4LDkPVUG";

std::string from_base64(std::string_view text) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  uint32_t window = 0;
  int bits = 0;
  for (const char c : text) {
    window = window << 6 | static_cast<uint32_t>(kDigits.find(c));
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    out.push_back(static_cast<char>(window >> bits & 255));
  }
  return out;
}

// A reader of the format, by its specification (C2SP age.md); "" when no stanza is for us.
std::string decrypt(const std::string& bytes, const std::string& identity) {
  const std::string secret = age::decode_bech32_key(identity, "age-secret-key-");
  const std::string own = age::x25519_public(secret);
  const size_t mac_line = bytes.find("\n--- ") + 1;
  const size_t header_end = bytes.find('\n', mac_line) + 1;
  std::istringstream header(bytes.substr(0, mac_line));
  std::string file_key;
  std::string line;
  std::getline(header, line);
  EXPECT_EQ(line, "age-encryption.org/v1");
  while (std::getline(header, line)) {
    if (!line.starts_with("-> X25519 ")) continue;
    const std::string share = from_base64(line.substr(10));
    std::getline(header, line);
    const std::string key =
        age::hkdf(age::x25519(secret, share), share + own, "age-encryption.org/v1/X25519");
    if (!error_of([&] {
           file_key = age::unseal(key, std::string(12, '\0'), from_base64(line));
         }).empty()) {
      continue;
    }
    break;
  }
  if (file_key.empty()) return "";
  EXPECT_EQ(hmac_sha256(age::hkdf(file_key, "", "header"), bytes.substr(0, mac_line + 3)),
            from_base64(bytes.substr(mac_line + 4, header_end - mac_line - 5)));
  const std::string key = age::hkdf(file_key, bytes.substr(header_end, 16), "payload");
  std::string plain;
  uint64_t counter = 0;
  for (size_t at = header_end + 16; at < bytes.size();) {
    const size_t size = std::min(bytes.size() - at, age::kChunk + age::kTag);
    const bool is_last = at + size == bytes.size();
    plain += age::unseal(key, age::chunk_nonce(counter++, is_last), bytes.substr(at, size));
    at += size;
  }
  return plain;
}

TEST(Age, ReadsWhatPyrageWrote) {
  EXPECT_EQ(decrypt(from_base64(kEncrypted), kIdentity), "written by pyrage 1.4.0");
  EXPECT_EQ(parse_age_recipient(kRecipient),
            age::x25519_public(age::decode_bech32_key(kIdentity, "age-secret-key-")));
}

TEST(Age, WritesFilesOfEverySizeThatTheRecipientReads) {
  const TempDir dir;
  const std::string other = age::x25519_public(random_bytes(32));
  const std::string recipients[] = {other, parse_age_recipient(kRecipient)};
  for (const size_t size : {size_t{0}, size_t{1}, age::kChunk - 1, age::kChunk, age::kChunk + 1,
                            2 * age::kChunk, 3 * age::kChunk + 17}) {
    const std::string plain = random_bytes(size + 1).substr(1);
    write_bytes(dir.file("plain"), plain);
    age_encrypt_file(dir.file("plain"), dir.file("plain.age"), recipients);
    EXPECT_TRUE(decrypt(read_bytes(dir.file("plain.age")), kIdentity) == plain) << size;
  }
}

TEST(Age, AnotherIdentityReadsNothingAndAChangedByteIsNoticed) {
  const TempDir dir;
  write_bytes(dir.file("plain"), "secret weights");
  const std::string recipients[] = {age::x25519_public(random_bytes(32))};
  age_encrypt_file(dir.file("plain"), dir.file("a"), recipients);
  EXPECT_EQ(decrypt(read_bytes(dir.file("a")), kIdentity), "");
  std::string changed = from_base64(kEncrypted);
  changed.back() = static_cast<char>(changed.back() ^ 1);
  EXPECT_THAT(error_of([&] { decrypt(changed, kIdentity); }), HasSubstr("tag"));
  EXPECT_EQ(read_bytes(dir.file("a")).find("secret"), std::string::npos);
}

TEST(Age, RefusesMalformedRecipients) {
  std::string wrong_checksum = kRecipient;
  wrong_checksum[20] = wrong_checksum[20] == 'q' ? 'p' : 'q';
  std::string upper = kRecipient;
  std::transform(upper.begin(), upper.end(), upper.begin(), ::toupper);
  const std::pair<std::string, const char*> bad[] = {
      {"", "starts differently"},
      {"age1", "another length"},
      {std::string(kRecipient) + "q", "another length"},
      {"ssh-ed25519 AAAA", "starts differently"},
      {kIdentity, "starts differently"},
      {upper, "starts differently"},
      {wrong_checksum, "checksum"},
      {std::string(kRecipient).replace(10, 1, "b"), "character"},
  };
  for (const auto& [text, message] : bad) {
    const std::string error = error_of([&] { parse_age_recipient(text); });
    EXPECT_THAT(error, HasSubstr(message)) << text;
    EXPECT_LT(error.size(), 200u);
  }
}

}  // namespace
}  // namespace strata::server
