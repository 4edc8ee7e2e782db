// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/crypto.h"
#include "server/tinker/base_names.h"
#include "tests/base/temp_dir.h"

namespace strata::server {
namespace {

using strata::testing::error_of;
using strata::testing::TempDir;
using strata::testing::write_bytes;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kLong = "tml-0123456789abcdef0123456789";

TEST(Crypto, MatchesPublishedVectors) {
  // FIPS 180-2, RFC 4231 test case 2, RFC 4648.
  EXPECT_EQ(to_hex(sha256("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(to_hex(hmac_sha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(base64url("foobar"), "Zm9vYmFy");
  EXPECT_EQ(base64url("fooba"), "Zm9vYmE");
  EXPECT_EQ(base64url("\xff\xfe"), "__4");
  EXPECT_TRUE(equal_constant_time("ab", "ab"));
  EXPECT_FALSE(equal_constant_time("ab", "ac"));
  EXPECT_FALSE(equal_constant_time("ab", "abc"));
  EXPECT_NE(random_id(), random_id());
}

TEST(Keys, ReadsTenantsAndComments) {
  const TempDir dir;
  const std::string path = dir.file("keys");
  write_bytes(path, std::string("# ours\n\n") + kLong + " alice # her laptop\n" + kLong +
                        "2\talice\r\ntml-without-a-name-but-long-enough\n");
  ::chmod(path.c_str(), 0600);
  const KeyRing keys({.keys_file = path});
  EXPECT_EQ(keys.identify(kLong)->tenant, "alice");
  EXPECT_EQ(keys.identify(std::string(kLong) + "2")->tenant, "alice");
  EXPECT_EQ(keys.identify("tml-without-a-name-but-long-enough")->tenant,
            to_hex(sha256("tml-without-a-name-but-long-enough")).substr(0, 16));
  EXPECT_FALSE(keys.identify("tml-other").has_value());
  EXPECT_FALSE(keys.identify("").has_value());
  EXPECT_THAT(keys.warnings(), ElementsAre());
}

// What SIGHUP may meet while somebody writes the file.
TEST(Keys, AFileThatWasEmptiedOrCutIsToldFromOneThatLostAKey) {
  const TempDir dir;
  const std::string path = dir.file("keys");
  const std::string admins = dir.file("admins");
  const std::string two = std::string(kLong) + "1 alice\n" + kLong + "2 bob\n";
  write_bytes(admins, std::string(kLong) + " root\n");
  const auto read = [&](const std::string& text) {
    write_bytes(path, text);
    return KeyRing({.keys_file = path, .admin_keys_file = admins});
  };
  const KeyRing before = read(two);
  EXPECT_THAT(error_of([&] { (void)read("").check_against(before); }), HasSubstr("has no key"));
  EXPECT_THAT(error_of([&] { (void)read("# soon\n").check_against(before); }),
              HasSubstr("has no key"));
  EXPECT_THAT(error_of([&] { (void)read(two.substr(0, 50)).check_against(before); }),
              HasSubstr("its last line has no end, and 1 keys are gone"));
  EXPECT_EQ(read(two.substr(0, 38)).check_against(before), 1);
  EXPECT_EQ(read(two.substr(0, two.size() - 1)).check_against(before), 0);
  EXPECT_EQ(read(two + kLong + "3 carol\n").check_against(before), 0);
  const KeyRing narrow = read(two + kLong + "3 carol read-only expires=2999-01-31\n");
  const std::string cut = two + kLong + "3 carol";
  for (const char* rest : {"", " ", " read-only", " read-only expires=2999-01-31T23:00:00Z"}) {
    EXPECT_THAT(error_of([&] { (void)read(cut + rest).check_against(narrow); }),
                HasSubstr("its last line has no end"))
        << rest;
  }
  EXPECT_EQ(read(cut + " read-only expires=2999-01-31").check_against(narrow), 0);
}

TEST(Keys, WarnsOfShortKeysAndOpenFiles) {
  const TempDir dir;
  const std::string path = dir.file("keys");
  write_bytes(path, "tml-short a\n");
  ::chmod(path.c_str(), 0644);
  EXPECT_THAT(KeyRing({.keys_file = path}).warnings(),
              ElementsAre(HasSubstr("0644"), HasSubstr("keys:1: a key of 9 characters")));
}

TEST(Keys, ReadsTheEnvironmentAndAdministrators) {
  const std::string key = kLong;
  const KeyRing keys({.keys_text = key + " a," + key + "b b", .admin_keys_text = key + "c root"});
  EXPECT_FALSE(keys.identify(key + "b")->is_admin);
  EXPECT_TRUE(keys.identify(key + "c")->is_admin);
  EXPECT_THAT(keys.tenants(), ElementsAre("a", "b", "root"));
}

TEST(Keys, ReadsHashesScopesAndDates) {
  const std::string key = kLong;
  const KeyRing keys(
      {.keys_text = hashed_key(key) + " a," + key + "r a read-only expires=2001-09-09," + key +
                    "s a expires=2001-09-09T01:46:40Z sample-only," + hashed_key(key + "x")});
  EXPECT_EQ(keys.identify(key),
            (Identity{.tenant = "a", .key_id = to_hex(sha256(key)).substr(0, 12)}));
  EXPECT_FALSE(keys.identify(hashed_key(key)).has_value()) << "the hash itself opens nothing";
  EXPECT_EQ(keys.identify(key + "r")->scope, Scope::kRead);
  EXPECT_EQ(keys.identify(key + "r")->expires_at, 1e9 - 6400);
  EXPECT_EQ(keys.identify(key + "s")->scope, Scope::kSample);
  EXPECT_EQ(keys.identify(key + "s")->expires_at, 1e9);
  EXPECT_EQ(keys.identify(key + "x")->tenant, to_hex(sha256(key + "x")).substr(0, 16));
  EXPECT_FALSE(has_expired(*keys.identify(key + "s"), 1e9 - 1));
  EXPECT_TRUE(has_expired(*keys.identify(key + "s"), 1e9));
  EXPECT_FALSE(has_expired(*keys.identify(key), 1e12));
  EXPECT_THAT(keys.warnings(), ElementsAre(HasSubstr("STRATA_KEYS:2: key"), HasSubstr("expired")));
  EXPECT_THAT(hashed_key("abc"), HasSubstr("sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a"
                                           "9cb410ff61f20015ad"));
}

TEST(Keys, MayBeHeldToAdapters) {
  const std::string other = "tml-" + std::string(30, 'b'), third = "tml-" + std::string(30, 'c');
  const KeyRing keys({.keys_text = std::string(kLong) + " alice adapters=style adapters=facts," +
                                   other + " bob adapters=org/mine," + third + " carol"});
  EXPECT_TRUE(keys.may_sample("alice", "style"));
  EXPECT_TRUE(keys.may_sample("alice", "facts"));
  EXPECT_FALSE(keys.may_sample("alice", "org/mine"));
  EXPECT_TRUE(keys.may_sample("bob", "org/mine"));
  EXPECT_FALSE(keys.may_sample("bob", "style"));
  EXPECT_TRUE(keys.may_sample("carol", "style"));
  EXPECT_TRUE(KeyRing({.no_keys = true}).may_sample("local", "style"));
  const TempDir dir;
  write_bytes(dir.file("keys"), std::string(kLong) + " alice read-only adapters=a,b\n");
  EXPECT_TRUE(KeyRing({.keys_file = dir.file("keys")}).may_sample("alice", "b"));
}

TEST(Keys, WithoutKeysEverybodyIsLocal) {
  const KeyRing keys({.no_keys = true});
  EXPECT_EQ(keys.identify("tml-anything")->tenant, "local");
  EXPECT_EQ(keys.identify("")->tenant, "local");
}

TEST(Keys, KnowsWhichTenantsHaveOne) {
  const KeyRing keys({.keys_text = std::string(kLong) + " alice expires=2026-01-01"});
  EXPECT_TRUE(keys.has_tenant("alice", 0));
  EXPECT_FALSE(keys.has_tenant("alice", 4e9));  // it has expired
  EXPECT_FALSE(keys.has_tenant("bob", 0));
  EXPECT_TRUE(KeyRing({.no_keys = true}).has_tenant("local", 4e9));
}

TEST(Keys, RefusesByNameAndNeverShowsTheKey) {
  const std::string key = kLong;
  const std::pair<std::string, const char*> bad[] = {
      {"sk-secret", "STRATA_KEYS:1: a key starts with 'tml-'"},
      {key + " a," + "tml-", "STRATA_KEYS:2"},
      {key + " a/b", "tenant 'a/b'"},
      {key + " ..", "tenant '..'"},
      {key + " fingerprint", "tenant 'fingerprint'"},
      {key + " a b", "tenant 'a' is followed by 'b'"},
      {key + " tml-secret-that-a-space-divides", "a second key stands on this line"},
      {key + " a tml-secret", "a second key stands on this line"},
      {"tml-a-file-without-a-last-newline alicetml-secret bob", "a second key"},
      {key + " a sha256:secret", "a second key"},
      {key + " a read-only sample-only", "followed by 'sample-only'"},
      {key + " a expires=2027-01-31 expires=2028-01-31", "followed by 'expires=2028-01-31'"},
      {key + " read-only", "'read-only' stands where the tenant belongs"},
      {key + " sample-only expires=2027-01-31", "stands where the tenant belongs"},
      {key + " a expires=tomorrow", "expires=2027-01-31"},
      {key + " a expires=2027-02-29", "want a date"},
      {key + " a expires=2027-01-31T24:00:00Z", "want a date"},
      {key + " a expires=2027-01-31T12:00:00+1", "want a date"},
      {key + " a adapters=", "want names of --adapter"},
      {key + " a adapters=a/../b\x01", "want names of --adapter"},
      {key + " a adapters=x," + hashed_key("tml-other") + " a", "have other adapters"},
      {"sha256:abc a", "64 hex digits"},
      {"sha256:" + std::string(63, 'a') + "g a", "64 hex digits"},
      {"sha256:" + std::string(62, 'a') + "+1 a", "64 hex digits"},
      {key + " a," + hashed_key(key) + " a read-only", "or with other rights"},
      {key + " a," + key + " b", "listed twice, for tenants 'a' and 'b'"},
      {" # only a comment", "strata keygen"},
      {"", "strata keygen"},
  };
  for (const auto& [text, message] : bad) {
    const std::string error = error_of([&] { KeyRing({.keys_text = text}); });
    EXPECT_THAT(error, HasSubstr(message)) << text;
    EXPECT_EQ(error.find(key), std::string::npos);
    EXPECT_EQ(error.find("secret"), std::string::npos);
  }
  EXPECT_THAT(error_of([&] { KeyRing({.keys_text = key, .no_keys = true}); }),
              HasSubstr("--no-keys"));
  EXPECT_NO_THROW(KeyRing({.keys_text = key + " a," + key + " a"}));
}

TEST(Keys, GeneratesKeysThatTheClientTakes) {
  const std::string key = generate_key();
  EXPECT_TRUE(key.starts_with("tml-"));
  EXPECT_EQ(key.size(), 4u + 43u);
  EXPECT_TRUE(KeyRing({.keys_text = key}).identify(key).has_value());
}

TEST(BaseNames, SharesADirectoryAndLooksUpSuffixes) {
  const TempDir a;
  const TempDir b;
  const BaseNames names(
      {"Qwen/Q-8B=" + a.path(), "q=" + a.path() + "/../" + a.path().substr(5), "other=" + b.path()},
      {"short=other"}, {"q=/tok"});
  EXPECT_EQ(names.directories().size(), 2u);
  EXPECT_EQ(names.find("Qwen/Q-8B")->model, names.find("q")->model);
  EXPECT_EQ(names.find("Qwen/Q-8B:peft:131072")->name, "Qwen/Q-8B");
  EXPECT_EQ(names.find("short")->model, names.find("other")->model);
  EXPECT_EQ(names.find("q")->tokenizer_id, "/tok");
  EXPECT_EQ(names.find("Qwen/Q-8B")->tokenizer_id, names.directories()[0]);
  EXPECT_EQ(names.find("nobody"), nullptr);
  EXPECT_EQ(names.find(a.path()), nullptr);
}

TEST(BaseNames, RefusesByOption) {
  const TempDir a;
  const std::string dir = a.path();
  EXPECT_THAT(error_of([&] { BaseNames({"x"}, {}, {}); }), HasSubstr("--model: got 'x'"));
  EXPECT_THAT(error_of([&] { BaseNames({"a b=" + dir}, {}, {}); }), HasSubstr("name 'a b'"));
  EXPECT_THAT(error_of([&] { BaseNames({"a=/nowhere"}, {}, {}); }), HasSubstr("'/nowhere'"));
  EXPECT_THAT(error_of([&] { BaseNames({"a=" + dir, "a=" + dir}, {}, {}); }), HasSubstr("twice"));
  EXPECT_THAT(error_of([&] { BaseNames({"a=" + dir}, {"b=c"}, {}); }), HasSubstr("'c'"));
  EXPECT_THAT(error_of([&] { BaseNames({"a=" + dir}, {}, {"c=/t"}); }), HasSubstr("'c'"));
}

}  // namespace
}  // namespace strata::server
