// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/options/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/base/temp_dir.h"

namespace strata::server {
namespace {

using strata::testing::error_of;
using strata::testing::TempDir;
using strata::testing::write_bytes;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

OptionSource least() { return {"command line", {{"model", {"A=/x"}}, {"data", {"/d"}}}}; }

ServeOptions merged(const std::map<std::string, std::vector<std::string>>& values) {
  OptionSource source = least();
  for (const auto& [name, value] : values) source.values[name] = value;
  const OptionSource sources[] = {source};
  return merge_options(sources);
}

TEST(Options, TheStrongestSourceWinsAndListsAreReplaced) {
  const OptionSource cli{"command line", {{"max-body", {"1MiB"}}, {"data", {"/cli"}}}};
  const OptionSource env = options_from_environment({{"STRATA_MAX_BODY", "2MiB"},
                                                     {"STRATA_MAX_RANK", "8"},
                                                     {"STRATA_MODEL", "A=/a,B=/b"},
                                                     {"STRATA_DATA", ""}});
  const OptionSource file{"f.toml",
                          {{"max-rank", {"16"}}, {"model", {"C=/c"}}, {"keepalive", {"7"}}}};
  const OptionSource sources[] = {cli, env, file};
  const ServeOptions options = merge_options(sources);
  EXPECT_EQ(options.max_body, 1 << 20);
  EXPECT_EQ(options.max_rank, 8);
  EXPECT_EQ(options.keepalive, 7);
  EXPECT_EQ(options.data, "/cli");
  EXPECT_EQ(options.gap_timeout, 600);
  EXPECT_THAT(options.models, ElementsAre("A=/a", "B=/b"));
}

// Every preset's values are values of its rows, and a limit's own option counts wherever it is.
TEST(Options, LimitsAreAPresetBelowTheirOwnOptions) {
  const ServeOptions usual = merged({{"limits", {"default"}}});
  EXPECT_EQ(usual.max_adapters, ServeOptions().max_adapters);
  EXPECT_EQ(usual.max_parked, ServeOptions().max_parked);
  const ServeOptions small = merged({{"limits", {"small"}}}),
                     large = merged({{"limits", {"large"}}});
  for (const auto limit :
       {&ServeOptions::max_adapters, &ServeOptions::max_parked, &ServeOptions::max_history,
        &ServeOptions::max_downloads_per_tenant, &ServeOptions::max_queued_samples,
        &ServeOptions::max_queued_operations, &ServeOptions::max_sessions_per_tenant,
        &ServeOptions::max_samplers_per_session, &ServeOptions::max_samplers_per_tenant,
        &ServeOptions::max_ephemeral, &ServeOptions::max_stability_bytes,
        &ServeOptions::max_archive_bytes}) {
    EXPECT_LT(small.*limit, usual.*limit);
    EXPECT_GT(large.*limit, usual.*limit);
  }
  const OptionSource cli{"command line", {{"limits", {"small"}}}};
  const OptionSource file{
      "f.toml",
      {{"model", {"A=/x"}}, {"data", {"/d"}}, {"limits", {"large"}}, {"max-adapters", {"77"}}}};
  const OptionSource sources[] = {cli, file};
  const ServeOptions options = merge_options(sources);
  EXPECT_EQ(options.max_adapters, 77);
  EXPECT_EQ(options.max_parked, small.max_parked);
  EXPECT_THAT(error_of([] { merged({{"limits", {"huge"}}}); }),
              HasSubstr("small, default or large"));
}

TEST(Options, KeysInTheEnvironmentAreKeysAndNotAFile) {
  const OptionSource sources[] = {least(),
                                  options_from_environment({{"STRATA_KEYS", "tml-a,tml-b x"}})};
  const ServeOptions options = merge_options(sources);
  EXPECT_EQ(options.keys_text, "tml-a,tml-b x");
  EXPECT_EQ(options.keys, "");
}

TEST(Options, ReadsAddresses) {
  EXPECT_EQ(parse_host_port("listen", "[::1]:80").host, "::1");
  EXPECT_EQ(parse_host_port("listen", "0.0.0.0:65535").port, 65535);
  EXPECT_TRUE(parse_host_port("listen", "localhost:0").is_loopback());
  EXPECT_FALSE(parse_host_port("listen", "0.0.0.0:1").is_loopback());
  const HostPort unix_socket = parse_host_port("listen", "unix:/run/strata:1.sock");
  EXPECT_EQ(unix_socket.path, "/run/strata:1.sock");
  EXPECT_EQ(unix_socket.text(), "unix:/run/strata:1.sock");
  EXPECT_TRUE(unix_socket.is_loopback());
  for (const char* bad : {"", "unix:", "x", ":1", "a:", "a:65536", "a:-1", "a:1x", "::1:80"}) {
    EXPECT_THAT(error_of([&] { parse_host_port("listen", bad); }), HasSubstr("--listen")) << bad;
  }
}

TEST(Options, RefusesWhatIsOutOfRange) {
  const std::pair<const char*, const char*> bad[] = {
      {"max-body", "2GiB"},
      {"poll-hold", "45s"},
      {"gap-timeout", "0.5"},
      {"max-rank", "0"},
      {"max-adapters", "-1"},
      {"stable-reinforce", "maybe"},
      {"public-url", "ftp://x"},
      {"public-url", "http://"},
      {"public-url", "http://a?b"},
      {"dtype", "f16"},
      {"db", "mysql://x"},
      {"memory", "101%"},
      {"socket-mode", "0888"},
      {"socket-mode", "1777"},
      {"rate", "requests=1/s"},
      {"rate", "a:requests=1"},
      {"rate", "a:passes=1/s"},
      {"rate", "a:disk-bytes=1/s"},
      {"rate", "a:requests=0/s"},
      {"rate", "a:requests=nan/s"},
      {"rate", "a/b:requests=1/s"},
      {"quota", "a:requests=1/s"},
      {"quota", "a:trained tokens=1"},
      {"quota", "a:trained-tokens=1e3"},
      {"quota", "*:sampled-tokens=0"},
      {"quota", "*:sampled-tokens=9007199254740993"},
      {"quota", "*:disk-bytes=much"},
      {"quota", ":requests=1"},
      {"min-body-rate", "0"},
      {"max-connections", "9"},
      {"max-result-bytes", "much"},
  };
  for (const auto& [name, value] : bad) {
    EXPECT_THAT(error_of([&] { merged({{name, {value}}}); }), HasSubstr(std::string("--") + name))
        << value;
  }
  EXPECT_THAT(error_of([] { merged({{"max-rank", {"1", "2"}}}); }), HasSubstr("given 2 times"));
  EXPECT_THAT(error_of([] { merged({{"max-bodi", {"1"}}}); }),
              HasSubstr("'max-bodi' is no option"));
  EXPECT_THAT(error_of([] { merged({{"no-keys", {"on"}}, {"listen", {"0.0.0.0:1"}}}); }),
              HasSubstr("other machines"));
  EXPECT_THAT(error_of([] { merge_options({}); }), HasSubstr("--model"));
}

TEST(Options, ReadsRatesAndQuotas) {
  const ServeOptions options =
      merged({{"rate", {"*:requests=0.5/s", "alice:requests=5/s"}},
              {"quota", {"alice:disk-bytes=10GiB", "*:sampled-tokens=1000000"}}});
  ASSERT_EQ(options.rates.size(), 2u);
  EXPECT_EQ(options.rates[0].tenant, "*");
  EXPECT_EQ(options.rates[0].amount, 0.5);
  EXPECT_EQ(options.rates[1].text, "alice:requests=5/s");
  ASSERT_EQ(options.quotas.size(), 2u);
  EXPECT_EQ(options.quotas[0].kind, UsageKind::kDiskBytes);
  EXPECT_EQ(options.quotas[0].amount, 10.0 * (1 << 30));
  EXPECT_EQ(options.quotas[1].amount, 1e6);
  EXPECT_THAT(error_of([] { merged({{"rate", {"a:requests=1/s", "a:requests=2/s"}}}); }),
              HasSubstr("--rate: got 'a:requests=2/s', want one limit of requests for 'a'"));
}

TEST(Options, NamesUnknownVariables) {
  EXPECT_THAT(unknown_variables({{"STRATA_MAXBODY", "1"}, {"STRATA_LOG", "2"}, {"HOME", "/"}}),
              ElementsAre("STRATA_MAXBODY"));
}

TEST(Options, TlsTakesACertificateItsKeyAndAnAddress) {
  const auto fault = [](const std::map<std::string, std::vector<std::string>>& values) {
    return error_of([&] { merged(values); });
  };
  EXPECT_THAT(fault({{"tls-cert", {"c"}}}), HasSubstr("--tls-cert is given without --tls-key"));
  EXPECT_THAT(fault({{"tls-key", {"k"}}}), HasSubstr("--tls-key is given without --tls-cert"));
  EXPECT_THAT(fault({{"tls-cert", {"c"}}, {"tls-key", {"k"}}, {"listen", {"unix:/run/s"}}}),
              HasSubstr("listen at HOST:PORT"));
  EXPECT_EQ(fault({{"tls-cert", {"c"}}, {"tls-key", {"k"}}}), "");
}

TEST(Options, WarnsWhenKeysTravelInTheClear) {
  EXPECT_THAT(option_warnings(merged({})), ElementsAre());
  EXPECT_THAT(option_warnings(merged({{"listen", {"0.0.0.0:1"}}})),
              ElementsAre(HasSubstr("clear")));
  EXPECT_THAT(option_warnings(merged({{"listen", {"0.0.0.0:1"}}, {"public-url", {"https://x/"}}})),
              ElementsAre());
  EXPECT_THAT(
      option_warnings(merged({{"listen", {"0.0.0.0:1"}}, {"tls-cert", {"c"}}, {"tls-key", {"k"}}})),
      ElementsAre());
}

TEST(Options, ReadsTheFile) {
  const TempDir dir;
  const std::string path = dir.file("strata.toml");
  write_bytes(path,
              "# ours\nmodel = [\"A=/x\"]\ndata = \"/d\"\nmax-body = \"1MiB\"\nmax-rank = 64\n"
              "no-keys = true\nstable-reinforce = false\nprefix-cache = false\n"
              "result-ttl = 1.5\n");
  const OptionSource sources[] = {options_from_file(path)};
  const ServeOptions options = merge_options(sources);
  EXPECT_EQ(options.max_body, 1 << 20);
  EXPECT_EQ(options.max_rank, 64);
  EXPECT_EQ(options.result_ttl, 1.5);
  EXPECT_FALSE(options.prefix_cache);
  EXPECT_TRUE(options.no_keys);
  EXPECT_FALSE(options.stable_reinforce);
  const std::pair<const char*, const char*> bad[] = {
      {"a = 1\nmaxbody = 2\n", ":1: 'a' is no option"},
      {"data = [\"a\"]\n", "want one value"},
      {"max-rank = 1979-05-27\n", "want a text"},
      {"model = [\"A=/x\", [1]]\n", "want a text"},
      {"[serve]\ndata = \"x\"\n", "'serve' is no option"},
      {"data = \"a\"\ndata = \"b\"\n", ":2:"},
      {"data = \n", ":1:"},
  };
  for (const auto& [text, message] : bad) {
    write_bytes(path, text);
    EXPECT_THAT(error_of([&] { options_from_file(path); }), HasSubstr(message)) << text;
  }
}

}  // namespace
}  // namespace strata::server
