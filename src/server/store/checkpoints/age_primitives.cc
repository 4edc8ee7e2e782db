// SPDX-License-Identifier: Apache-2.0
// Keys, ciphers and texts of age, from OpenSSL.
#include <fmt/format.h>
#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>

#include "base/check.h"
#include "base/error.h"
#include "server/store/checkpoints/age.h"

namespace strata::server::age {
namespace {

template <typename T, void (*kFree)(T*)>
struct Free {
  void operator()(T* object) const { kFree(object); }
};
using Key = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY, EVP_PKEY_free>>;
using KeyContext = std::unique_ptr<EVP_PKEY_CTX, Free<EVP_PKEY_CTX, EVP_PKEY_CTX_free>>;
using Kdf = std::unique_ptr<EVP_KDF, Free<EVP_KDF, EVP_KDF_free>>;
using KdfContext = std::unique_ptr<EVP_KDF_CTX, Free<EVP_KDF_CTX, EVP_KDF_CTX_free>>;
using Cipher = std::unique_ptr<EVP_CIPHER_CTX, Free<EVP_CIPHER_CTX, EVP_CIPHER_CTX_free>>;

const unsigned char* in(std::string_view bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}
unsigned char* out(std::string& bytes) { return reinterpret_cast<unsigned char*>(bytes.data()); }

OSSL_PARAM octets(const char* name, std::string_view bytes) {
  return OSSL_PARAM_construct_octet_string(name, const_cast<char*>(bytes.data()), bytes.size());
}

Key secret_key(std::string_view secret) {
  return Key(EVP_PKEY_new_raw_private_key(EVP_PKEY_X25519, nullptr, in(secret), secret.size()));
}

constexpr std::string_view kBech32 = "qpzry9x8gf2tvdw0s3jn54khce6mua7l";
constexpr size_t kKeyCharacters = 52, kSumCharacters = 6;  // of 32 bytes, and behind them

uint32_t bech32_polymod(const std::vector<uint8_t>& values) {
  constexpr uint32_t kGenerator[] = {0x3b6a57b2, 0x26508e6d, 0x1ea119fa, 0x3d4233dd, 0x2a1462b3};
  uint32_t check = 1;
  for (const uint8_t value : values) {
    const uint32_t top = check >> 25;
    check = (check & 0x1ffffff) << 5 ^ value;
    for (int i = 0; i < 5; ++i) check ^= ((top >> i) & 1) != 0 ? kGenerator[i] : 0;
  }
  return check;
}

// How the checksum counts the prefix.
std::vector<uint8_t> bech32_prefix_values(std::string_view prefix) {
  std::vector<uint8_t> values;
  for (const char c : prefix) values.push_back(static_cast<uint8_t>(c) >> 5);
  values.push_back(0);
  for (const char c : prefix) values.push_back(static_cast<uint8_t>(c) & 31);
  return values;
}

// The values of a text's characters; nothing where one is not of Bech32.
std::optional<std::vector<uint8_t>> bech32_values(std::string_view text) {
  std::vector<uint8_t> values;
  for (const char c : text) {
    const size_t value = kBech32.find(c);
    if (value == std::string_view::npos) return std::nullopt;
    values.push_back(static_cast<uint8_t>(value));
  }
  return values;
}

// Whether the last six of the values are the checksum of those before.
bool has_bech32_checksum(std::string_view prefix, std::span<const uint8_t> values) {
  std::vector<uint8_t> all = bech32_prefix_values(prefix);
  all.insert(all.end(), values.begin(), values.end());
  return bech32_polymod(all) == 1;
}

// Nothing where bits that are left over are not zero.
std::optional<std::string> bytes_from_5_bit_groups(std::span<const uint8_t> values) {
  std::string bytes;
  uint32_t window = 0;
  int bits = 0;
  for (const uint8_t value : values) {
    window = (window << 5) | value;
    bits += 5;
    if (bits < 8) continue;
    bits -= 8;
    bytes.push_back(static_cast<char>((window >> bits) & 255));
  }
  if ((window & ((1U << bits) - 1)) != 0) return std::nullopt;
  return bytes;
}

}  // namespace

std::string hkdf(std::string_view key, std::string_view salt, std::string_view info) {
  const Kdf kdf(EVP_KDF_fetch(nullptr, "HKDF", nullptr));
  const KdfContext context(EVP_KDF_CTX_new(kdf.get()));
  char digest[] = "SHA256";
  OSSL_PARAM parameters[] = {OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
                             octets(OSSL_KDF_PARAM_KEY, key), octets(OSSL_KDF_PARAM_INFO, info),
                             octets(OSSL_KDF_PARAM_SALT, salt), OSSL_PARAM_construct_end()};
  if (salt.empty()) parameters[3] = OSSL_PARAM_construct_end();  // the same as 32 zeros
  std::string derived(32, '\0');
  CHECK(EVP_KDF_derive(context.get(), out(derived), derived.size(), parameters) == 1);
  return derived;
}

std::string x25519(std::string_view secret, std::string_view public_key) {
  const Key own = secret_key(secret);
  const Key peer(
      EVP_PKEY_new_raw_public_key(EVP_PKEY_X25519, nullptr, in(public_key), public_key.size()));
  if (!own || !peer) return {};
  const KeyContext context(EVP_PKEY_CTX_new(own.get(), nullptr));
  std::string shared(32, '\0');
  size_t size = shared.size();
  // OpenSSL refuses the all-zero secret of a point of low order.
  const bool ok = EVP_PKEY_derive_init(context.get()) == 1 &&
                  EVP_PKEY_derive_set_peer(context.get(), peer.get()) == 1 &&
                  EVP_PKEY_derive(context.get(), out(shared), &size) == 1 && size == 32;
  return ok ? shared : std::string();
}

std::string x25519_public(std::string_view secret) {
  const Key own = secret_key(secret);
  std::string bytes(32, '\0');
  size_t size = bytes.size();
  CHECK(own != nullptr && EVP_PKEY_get_raw_public_key(own.get(), out(bytes), &size) == 1);
  return bytes;
}

std::string seal(std::string_view key, std::string_view nonce, std::string_view plain) {
  CHECK(key.size() == 32 && nonce.size() == 12, key.size(), nonce.size());
  const Cipher cipher(EVP_CIPHER_CTX_new());
  std::string sealed(plain.size() + kTag, '\0');
  int size = 0;
  int rest = 0;
  const bool ok =
      EVP_EncryptInit_ex(cipher.get(), EVP_chacha20_poly1305(), nullptr, in(key), in(nonce)) == 1 &&
      EVP_EncryptUpdate(cipher.get(), out(sealed), &size, in(plain),
                        static_cast<int>(plain.size())) == 1 &&
      EVP_EncryptFinal_ex(cipher.get(), out(sealed) + size, &rest) == 1 &&
      EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_AEAD_GET_TAG, kTag, out(sealed) + plain.size()) ==
          1;
  CHECK(ok && static_cast<size_t>(size + rest) == plain.size(), size, rest);
  return sealed;
}

std::string unseal(std::string_view key, std::string_view nonce, std::string_view sealed) {
  CHECK(key.size() == 32 && nonce.size() == 12, key.size(), nonce.size());
  if (sealed.size() < kTag) throw Error(ErrorCode::kInvalidArgument, "age: a chunk is too short");
  const Cipher cipher(EVP_CIPHER_CTX_new());
  const size_t length = sealed.size() - kTag;
  std::string plain(length, '\0');
  std::string tag(sealed.substr(length));
  int size = 0;
  int rest = 0;
  const bool ok =
      EVP_DecryptInit_ex(cipher.get(), EVP_chacha20_poly1305(), nullptr, in(key), in(nonce)) == 1 &&
      EVP_DecryptUpdate(cipher.get(), out(plain), &size, in(sealed), static_cast<int>(length)) ==
          1 &&
      EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_AEAD_SET_TAG, kTag, out(tag)) == 1 &&
      EVP_DecryptFinal_ex(cipher.get(), out(plain) + size, &rest) == 1;
  if (!ok) throw Error(ErrorCode::kInvalidArgument, "age: the tag does not fit the data");
  return plain;
}

std::string chunk_nonce(uint64_t counter, bool is_last) {
  std::string nonce(12, '\0');
  for (int i = 10; i >= 3; --i, counter >>= 8) nonce[i] = static_cast<char>(counter & 255);
  nonce[11] = is_last ? 1 : 0;
  return nonce;
}

std::string base64_unpadded(std::string_view bytes) {
  std::string text(4 * ((bytes.size() + 2) / 3) + 1, '\0');
  const int size = EVP_EncodeBlock(out(text), in(bytes), static_cast<int>(bytes.size()));
  text.resize(static_cast<size_t>(size));
  while (text.ends_with('=')) text.pop_back();
  return text;
}

std::string decode_bech32_key(const std::string& text, std::string_view prefix) {
  const auto fail = [&](const char* why) {
    // Only its beginning: the rest of a secret key pasted by mistake must not reach a log.
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("age: '{}...' is no key of the form {}1...: {}", text.substr(0, 8),
                            prefix, why));
  };
  if (!text.starts_with(prefix) || text.size() <= prefix.size() || text[prefix.size()] != '1') {
    fail("it starts differently");
  }
  if (text.size() != prefix.size() + 1 + kKeyCharacters + kSumCharacters)
    fail("it has another length");
  const auto values = bech32_values(std::string_view(text).substr(prefix.size() + 1));
  if (!values) fail("it has a character that is not of Bech32");
  if (!has_bech32_checksum(prefix, *values)) fail("its checksum is wrong; was it cut or mistyped?");
  std::optional<std::string> key =
      bytes_from_5_bit_groups(std::span(*values).first(kKeyCharacters));
  if (!key) fail("its last bits are not zero");
  return std::move(*key);
}

}  // namespace strata::server::age
