// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/options/options.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <set>
#include <vector>

#include "base/error.h"
#include "server/http/proxies.h"
#include "server/tinker/options/limit_presets.h"
#include "text/toml_file.h"

namespace strata::server {
namespace {

constexpr int64_t kOtherConnections = 1024;  // besides parked polls
constexpr uint64_t kOwnFiles = 512;          // state store, checkpoints, logs, listeners

std::string variable_name(std::string_view option) {
  std::string name = "STRATA_";
  for (const char c : option) {
    name += c == '-' ? '_' : static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  }
  return name;
}

// Without empty ones.
std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    if (end > begin) parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// These two hold keys and not the option's file name.
bool holds_keys(std::string_view option) { return option == "keys" || option == "admin-keys"; }

[[noreturn]] void fail(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

void check_models(const ServeOptions& o) {
  if (o.models.empty()) fail("--model: no model is given; want DIR or NAME=DIR");
}

void check_tls(const ServeOptions& o) {
  if (o.tls_cert.empty() != o.tls_key.empty()) {
    fail(fmt::format("--{} is given without --{}", o.tls_key.empty() ? "tls-cert" : "tls-key",
                     o.tls_key.empty() ? "tls-key" : "tls-cert"));
  }
  if (!o.tls_cert.empty() && !o.listen.path.empty()) {
    fail(
        fmt::format("--tls-cert: --listen {} is a file's socket, which no TLS is spoken at; "
                    "listen at HOST:PORT",
                    o.listen.text()));
  }
}

void check_state_places(const ServeOptions& o) {
  if (o.data.empty()) fail("--data: no data directory is given");
  if (!o.db.empty() && !o.db.starts_with("postgresql://") && !o.db.starts_with("postgres://")) {
    fail("--db: want a postgresql:// address; without --db the state is SQLite in --data");
  }
}

void check_max_connections(const ServeOptions& o) {
  if (o.max_connections > 0 && o.max_connections < o.max_parked) {
    fail(
        fmt::format("--max-connections: got {}, wanted {} or more: each parked poll (--max-parked) "
                    "is a connection",
                    o.max_connections, o.max_parked));
  }
}

void check_no_keys(const ServeOptions& o) {
  if (o.no_keys && (!o.listen.is_loopback() || !o.metrics_listen.is_loopback())) {
    fail("--no-keys: " + (o.listen.is_loopback() ? o.metrics_listen : o.listen).text() +
         " can be reached from other machines; listen on 127.0.0.1 or give --keys");
  }
}

void check_options(const ServeOptions& o) {
  check_models(o);
  check_state_places(o);
  check_max_connections(o);
  check_tls(o);
  TrustedProxies(o.trusted_proxies);  // refuses what is none
  check_distinct("rate", o.rates);
  check_distinct("quota", o.quotas);
  check_no_keys(o);
}

}  // namespace

OptionSource options_from_environment(const std::map<std::string, std::string>& variables) {
  OptionSource source{"environment", {}};
  ServeOptions options;
  const OptionTable table = option_table_of(options);
  for (const OptionRow& row : table.rows()) {
    // Kubernetes sets STRATA_PORT to the address of a service that is called strata.
    if (row.name == "port") continue;
    const auto found = variables.find(variable_name(row.name));
    if (found == variables.end() || found->second.empty()) continue;
    std::vector<std::string>& values = source.values[row.name];
    if (row.kind == OptionKind::kList) {
      values = split_at_commas(found->second);
    } else {
      values.push_back(found->second);
    }
  }
  return source;
}

OptionSource options_from_file(const std::string& path) {
  ServeOptions options;
  return {path, text::read_toml_options(path, option_table_of(options), "serve")};
}

std::vector<std::string> unknown_variables(const std::map<std::string, std::string>& variables) {
  std::set<std::string> known = {"STRATA_LOG", "STRATA_CPU_PATH", "STRATA_CONFIG"};
  ServeOptions options;
  const OptionTable table = option_table_of(options);
  for (const OptionRow& row : table.rows()) known.insert(variable_name(row.name));
  std::vector<std::string> unknown;
  for (const auto& [name, value] : variables) {
    if (name.starts_with("STRATA_") && !known.contains(name)) unknown.push_back(name);
  }
  return unknown;
}

namespace {

// The strongest source that gives the option a value; null: none does.
const OptionSource* find_strongest(std::span<const OptionSource> sources,
                                   const std::string& option) {
  for (const OptionSource& source : sources)
    if (source.values.contains(option)) return &source;
  return nullptr;
}

// That of the strongest source that gives one; null also where it gives several, which is refused
// with the others.
const std::string* find_limits_preset(std::span<const OptionSource> sources) {
  const OptionSource* source = find_strongest(sources, "limits");
  if (source == nullptr) return nullptr;
  const std::vector<std::string>& presets = source->values.at("limits");
  return presets.size() == 1 ? &presets.front() : nullptr;
}

void refuse_unknown_options(std::span<const OptionSource> sources, const OptionTable& table) {
  for (const OptionSource& source : sources) {
    for (const auto& [name, values] : source.values) {
      if (table.find(name) != nullptr) continue;
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{}: '{}' is no option of strata serve", source.where, name));
    }
  }
}

void set_values(const OptionRow& row, const std::string& where,
                const std::vector<std::string>& values) {
  if (row.kind != OptionKind::kList && values.size() != 1) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("{}: --{} is given {} times, want one value", where, row.name, values.size()));
  }
  for (const std::string& value : values) {
    row.set(value);
    if (row.check) row.check();
  }
}

// The value that the strongest source gives which has one.
void set_from_strongest(const OptionRow& row, std::span<const OptionSource> sources,
                        ServeOptions& options) {
  const std::string& name = row.name;
  const OptionSource* source = find_strongest(sources, name);
  if (source == nullptr) return;
  const std::vector<std::string>& values = source->values.at(name);
  if (name == "metrics-listen") options.names_metrics_listen = true;
  if (source->where == "environment" && holds_keys(name)) {
    (name == "keys" ? options.keys_text : options.admin_keys_text) = values.front();
  } else {
    set_values(row, source->where, values);
  }
}

}  // namespace

ServeOptions merge_options(std::span<const OptionSource> given) {
  ServeOptions options;
  const OptionTable table = option_table_of(options);
  std::vector<OptionSource> sources(given.begin(), given.end());
  if (const std::string* preset = find_limits_preset(given)) {
    table.find("limits")->set(*preset);
    sources.push_back(limits_source(options.limits));
  }
  refuse_unknown_options(sources, table);
  for (const OptionRow& row : table.rows()) set_from_strongest(row, sources, options);
  check_options(options);
  return options;
}

std::vector<std::string> option_warnings(const ServeOptions& o) {
  std::vector<std::string> warnings;
  if (!o.listen.is_loopback() && o.tls_cert.empty() && !o.public_url.starts_with("https://")) {
    warnings.push_back(fmt::format(
        "--listen {}: keys travel in the clear; give --tls-cert and --tls-key, or put a proxy with "
        "TLS before it and name it by --public-url",
        o.listen.text()));
  }
  return warnings;
}

int64_t connection_limit(const ServeOptions& options) {
  return options.max_connections > 0 ? options.max_connections
                                     : options.max_parked + kOtherConnections;
}

// As far as it goes, which is what it returns.
static rlim_t raise_file_limit() {
  struct rlimit limit;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return RLIM_INFINITY;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_max;
}

void ensure_file_limit(const ServeOptions& options) {
  const rlim_t limit = raise_file_limit();
  if (limit == RLIM_INFINITY) return;
  const bool is_given = options.max_connections > 0;
  const int64_t wanted = connection_limit(options);
  if (static_cast<uint64_t>(wanted) + kOwnFiles <= limit) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: got {}; {} connections and {} files of the server's own are more "
                          "than the {} that this process may open; lower it, or raise the hard "
                          "limit (ulimit -Hn)",
                          is_given ? "--max-connections" : "--max-parked",
                          is_given ? options.max_connections : options.max_parked, wanted,
                          kOwnFiles, static_cast<uint64_t>(limit)));
}

}  // namespace strata::server
