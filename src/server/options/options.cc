// SPDX-License-Identifier: Apache-2.0
#include "server/options/options.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <set>
#include <vector>

#include "base/error.h"
#include "server/base_names.h"
#include "server/http/proxies.h"
#include "server/options/limit_presets.h"

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

void check_options(const ServeOptions& o) {
  const auto fail = [](const std::string& message) {
    throw Error(ErrorCode::kInvalidArgument, message);
  };
  if (o.models.empty()) fail("--model: no model is given; want NAME=DIR");
  for (const std::string& model : o.models) {
    if (model.find('=') != std::string::npos) continue;
    fail(fmt::format("--model: got '{}', want NAME=DIR, like {}={}; or strata serve {}", model,
                     base_name_for(model), model, model));
  }
  if (o.data.empty()) fail("--data: no data directory is given");
  if (!o.db.empty() && !o.db.starts_with("postgresql://") && !o.db.starts_with("postgres://")) {
    fail("--db: want a postgresql:// address; without --db the state is SQLite in --data");
  }
  if (o.max_connections > 0 && o.max_connections < o.max_parked) {
    fail(
        fmt::format("--max-connections: got {}, wanted {} or more: each parked poll (--max-parked) "
                    "is a connection",
                    o.max_connections, o.max_parked));
  }
  if (o.audit_sync && o.audit.empty())
    fail("--audit-sync: there is no audit log; give --audit FILE");
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
  TrustedProxies(o.trusted_proxies);  // refuses what is none
  check_distinct("rate", o.rates);
  check_distinct("quota", o.quotas);
  if (o.no_keys && (!o.listen.is_loopback() || !o.metrics_listen.is_loopback())) {
    fail("--no-keys: " + (o.listen.is_loopback() ? o.metrics_listen : o.listen).text() +
         " can be reached from other machines; listen on 127.0.0.1 or give --keys");
  }
}

}  // namespace

OptionSource options_from_environment(const std::map<std::string, std::string>& variables) {
  OptionSource source{"environment", {}};
  ServeOptions options;
  const OptionTable table = options_of(options);
  for (const OptionRow& row : table.rows()) {
    const auto found = variables.find(variable_name(row.name));
    if (found == variables.end() || found->second.empty()) continue;
    std::vector<std::string>& values = source.values[row.name];
    if (row.kind != OptionKind::kList) {
      values.push_back(found->second);
      continue;
    }
    values = split_at_commas(found->second);
  }
  return source;
}

std::vector<std::string> unknown_variables(const std::map<std::string, std::string>& variables) {
  std::set<std::string> known = {"STRATA_LOG", "STRATA_CPU_PATH", "STRATA_CONFIG"};
  ServeOptions options;
  const OptionTable table = options_of(options);
  for (const OptionRow& row : table.rows()) known.insert(variable_name(row.name));
  std::vector<std::string> unknown;
  for (const auto& [name, value] : variables) {
    if (name.starts_with("STRATA_") && !known.contains(name)) unknown.push_back(name);
  }
  return unknown;
}

namespace {

// That of the strongest source that gives one; null also where it gives several, which is refused
// with the others.
const std::string* find_limits_preset(std::span<const OptionSource> sources) {
  for (const OptionSource& source : sources) {
    const auto limits = source.values.find("limits");
    if (limits == source.values.end()) continue;
    return limits->second.size() == 1 ? &limits->second.front() : nullptr;
  }
  return nullptr;
}

void check_names(std::span<const OptionSource> sources, const OptionTable& table) {
  for (const OptionSource& source : sources) {
    for (const auto& [name, values] : source.values) {
      if (table.find(name) != nullptr) continue;
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{}: '{}' is no option of strata serve", source.where, name));
    }
  }
}

// The value that the strongest source gives which has one.
void set_from_strongest(const OptionRow& row, std::span<const OptionSource> sources,
                        ServeOptions& options) {
  const std::string& name = row.name;
  for (const OptionSource& source : sources) {
    const auto found = source.values.find(name);
    if (found == source.values.end()) continue;
    if (name == "metrics-listen") options.names_metrics_listen = true;
    if (source.where == "environment" && holds_keys(name)) {
      (name == "keys" ? options.keys_text : options.admin_keys_text) = found->second.front();
      return;
    }
    if (row.kind != OptionKind::kList && found->second.size() != 1) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{}: --{} is given {} times, want one value", source.where, name,
                              found->second.size()));
    }
    for (const std::string& value : found->second) {
      row.set(value);
      if (row.check) row.check();
    }
    return;
  }
}

}  // namespace

ServeOptions merge_options(std::span<const OptionSource> given) {
  ServeOptions options;
  const OptionTable table = options_of(options);
  std::vector<OptionSource> sources(given.begin(), given.end());
  if (const std::string* preset = find_limits_preset(given)) {
    table.find("limits")->set(*preset);
    sources.push_back(limits_source(options.limits));
  }
  check_names(sources, table);
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

void raise_and_check_file_limit(const ServeOptions& options) {
  struct rlimit limit;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_max == RLIM_INFINITY) return;
  const bool is_given = options.max_connections > 0;
  const int64_t wanted = connection_limit(options);
  if (static_cast<uint64_t>(wanted) + kOwnFiles <= limit.rlim_max) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: got {}; {} connections and {} files of the server's own are more "
                          "than the {} that this process may open; lower it, or raise the hard "
                          "limit (ulimit -Hn)",
                          is_given ? "--max-connections" : "--max-parked",
                          is_given ? options.max_connections : options.max_parked, wanted,
                          kOwnFiles, static_cast<uint64_t>(limit.rlim_max)));
}

}  // namespace strata::server
