#include "server/options.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "base/error.h"

namespace strata::server {
namespace {

using Kind = OptionRow::Kind;

constexpr int64_t kOtherConnections = 1024;  // beside parked polls
constexpr uint64_t kOwnFiles = 512;          // state store, checkpoints, logs, listeners

[[noreturn]] void refuse(const std::string& name, const std::string& value,
                         const std::string& wanted) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--{}: got '{}', want {}", name, value, wanted));
}

bool parse_switch(const std::string& name, const std::string& value) {
  if (value == "on" || value == "true" || value == "1") return true;
  if (value == "off" || value == "false" || value == "0") return false;
  refuse(name, value, "on or off");
}

int64_t parse_count(const std::string& name, const std::string& value, int64_t least) {
  int64_t count = 0;
  const char* end = value.data() + value.size();
  const auto [rest, error] = std::from_chars(value.data(), end, count);
  if (error != std::errc{} || rest != end || count < least || count > 1'000'000'000) {
    refuse(name, value, fmt::format("a whole number from {} to 1000000000", least));
  }
  return count;
}

void set_max_body(ServeOptions& o, const std::string& name, const std::string& value) {
  o.max_body = parse_size(name, value);
  if (o.max_body > 1LL << 30) refuse(name, value, "at most 1GiB");
}

void set_poll_hold(ServeOptions& o, const std::string& name, const std::string& value) {
  o.poll_hold = parse_duration(name, value);
  if (o.poll_hold > 44) refuse(name, value, "at most 44s: clients give a poll up after 45s");
}

void set_gap_timeout(ServeOptions& o, const std::string& name, const std::string& value) {
  o.gap_timeout = parse_duration(name, value);
  if (o.gap_timeout < 1) refuse(name, value, "at least 1s");
}

void set_public_url(ServeOptions& o, const std::string& name, const std::string& value) {
  std::string url = value;
  while (url.ends_with('/')) url.pop_back();
  const size_t scheme = url.starts_with("https://") ? 8 : url.starts_with("http://") ? 7 : 0;
  const size_t host_end = std::min(url.find('/', scheme), url.size());
  const bool has_host = scheme != 0 && host_end > scheme && url[scheme] != ':';
  const bool is_clean = url.find_first_of("?#@ \t\r\n\"<>\\") == std::string::npos;
  if (!has_host || !is_clean) {
    refuse(name, value, "http(s)://HOST[:PORT][/PATH] without user, query or fragment");
  }
  o.public_url = url;
}

void set_socket_mode(ServeOptions& o, const std::string& name, const std::string& value) {
  const char* end = value.data() + value.size();
  const auto [rest, fault] = std::from_chars(value.data(), end, o.socket_mode, 8);
  if (fault != std::errc{} || rest != end || o.socket_mode < 0 || o.socket_mode > 0777)
    refuse(name, value, "an octal mode like 0660");
}

void set_dtype(ServeOptions& o, const std::string& name, const std::string& value) {
  if (value != "auto" && value != "bf16" && value != "f32")
    refuse(name, value, "auto, bf16 or f32");
  o.dtype = value;
}

void set_expert_rank(ServeOptions& o, const std::string& name, const std::string& value) {
  if (value != "divided" && value != "full") refuse(name, value, "divided or full");
  o.expert_rank = value;
}

void set_speculate(ServeOptions& o, const std::string& name, const std::string& value) {
  if (value != "none" && value != "mtp") refuse(name, value, "none or mtp");
  o.speculate = value;
}

// Setters for the kinds of which there are many.
template <double ServeOptions::* kField>
void set_duration(ServeOptions& o, const std::string& name, const std::string& value) {
  o.*kField = parse_duration(name, value);
}
template <int64_t ServeOptions::* kField, int64_t kLeast>
void set_count(ServeOptions& o, const std::string& name, const std::string& value) {
  o.*kField = parse_count(name, value, kLeast);
}
template <int64_t ServeOptions::* kField>
void set_size(ServeOptions& o, const std::string& name, const std::string& value) {
  o.*kField = parse_size(name, value);
}
template <HostPort ServeOptions::* kField>
void set_address(ServeOptions& o, const std::string& name, const std::string& value) {
  o.*kField = parse_host_port(name, value);
}
template <std::string ServeOptions::* kField>
void set_text(ServeOptions& o, const std::string& name, const std::string& value) {
  if (value.empty()) refuse(name, value, "a text that is not empty");
  o.*kField = value;
}
template <std::vector<std::string> ServeOptions::* kField>
void add_text(ServeOptions& o, const std::string&, const std::string& value) {
  (o.*kField).push_back(value);
}
template <bool ServeOptions::* kField>
void set_switch(ServeOptions& o, const std::string& name, const std::string& value) {
  o.*kField = parse_switch(name, value);
}

void add_rate(ServeOptions& o, const std::string& name, const std::string& value) {
  o.rates.push_back(parse_rate(name, value));
}

void add_quota(ServeOptions& o, const std::string& name, const std::string& value) {
  o.quotas.push_back(parse_quota(name, value));
}

using O = ServeOptions;
constexpr OptionRow kRows[] = {
    {"model", "NAME=DIR", "", "a base model: its name and Hugging Face directory; repeatable",
     Kind::kList, add_text<&O::models>},
    {"alias", "NAME=MODEL", "", "one more name for a model; repeatable", Kind::kList,
     add_text<&O::aliases>},
    {"tokenizer", "NAME=ID", "the model's directory", "tokenizer_id in get_info; repeatable",
     Kind::kList, add_text<&O::tokenizers>},
    {"listen", "HOST:PORT|unix:PATH", "127.0.0.1:8000", "where the API listens", Kind::kValue,
     set_address<&O::listen>},
    {"socket-mode", "OCTAL", "0600", "of the files of unix sockets", Kind::kValue, set_socket_mode},
    {"tls-cert", "FILE", "", "speak TLS at --listen: certificate and issuers' in PEM; see SIGHUP",
     Kind::kValue, set_text<&O::tls_cert>},
    {"tls-key", "FILE", "", "the certificate's private key in PEM", Kind::kValue,
     set_text<&O::tls_key>},
    {"public-url", "URL", "", "what clients call the server", Kind::kValue, set_public_url},
    {"metrics-listen", "HOST:PORT|unix:PATH", "127.0.0.1:9464", "where /metrics listens",
     Kind::kValue, set_address<&O::metrics_listen>},
    {"data", "DIR", "", "data directory", Kind::kValue, set_text<&O::data>},
    {"db", "URL", "SQLite in --data", "postgresql:// address of the state store", Kind::kValue,
     set_text<&O::db>},
    {"keys", "FILE", "",
     "a line a key: 'tml-...|sha256:HEX [TENANT [read-only|sample-only] [expires=DATE]]'",
     Kind::kValue, set_text<&O::keys>},
    {"admin-keys", "FILE", "", "keys of administrators, same form", Kind::kValue,
     set_text<&O::admin_keys>},
    {"no-keys", "", "off", "serve this machine alone, without keys", Kind::kFlag,
     set_switch<&O::no_keys>},
    {"audit", "FILE", "",
     "a line of JSON for each request that changes state: who, what, about what, its answer",
     Kind::kValue, set_text<&O::audit>},
    {"trace", "FILE", "",
     "timeline to write at the end, for ui.perfetto.dev (docs/timeline.md); it holds the last "
     "131,072 spans of each thread",
     Kind::kValue, set_text<&O::trace>},
    {"result-ttl", "DURATION", "1800s", "how long a result is kept after completion", Kind::kValue,
     set_duration<&O::result_ttl>},
    {"gap-timeout", "DURATION", "600s", "wait for a missing seq_id; at least 1s", Kind::kValue,
     set_gap_timeout},
    {"session-timeout", "DURATION", "300s", "a session without a sign of life ends", Kind::kValue,
     set_duration<&O::session_timeout>},
    {"poll-hold", "DURATION", "30s", "how long retrieve_future is held", Kind::kValue,
     set_poll_hold},
    {"header-timeout", "DURATION", "10s", "for the head of a request", Kind::kValue,
     set_duration<&O::header_timeout>},
    {"body-timeout", "DURATION", "30s", "without progress in a body", Kind::kValue,
     set_duration<&O::body_timeout>},
    {"keepalive", "DURATION", "120s", "an idle connection is closed", Kind::kValue,
     set_duration<&O::keepalive>},
    {"max-body", "SIZE", "64MiB, if --memory is 2GiB",
     "of a pass, compressed and decompressed; at most 1GiB", Kind::kValue, set_max_body},
    {"max-sample-body", "SIZE", "16MiB", "of asample; at most --max-body", Kind::kValue,
     set_size<&O::max_sample_body>},
    {"max-small-body", "SIZE", "1MiB", "of requests but passes and samples; at most --max-body",
     Kind::kValue, set_size<&O::max_small_body>},
    {"max-body-bytes", "SIZE", "1/32 of --memory, 256MiB to 512MiB",
     "of all bodies being read, at least four times --max-body; half for all, half by tenant",
     Kind::kValue, set_size<&O::max_body_bytes>},
    {"min-body-rate", "SIZE", "8KiB", "a second, after the first --body-timeout of a body",
     Kind::kValue, set_size<&O::min_body_rate>},
    {"max-connections", "COUNT", "--max-parked and 1024", "open at once; more are refused",
     Kind::kValue, set_count<&O::max_connections, 1>},
    {"max-connections-per-address", "COUNT", "half of --max-connections",
     "open at once; loopback addresses and unix sockets have no limit", Kind::kValue,
     set_count<&O::max_connections_per_address, 1>},
    {"max-adapters", "COUNT", "64", "models alive at once", Kind::kValue,
     set_count<&O::max_adapters, 1>},
    {"max-adapters-per-tenant", "COUNT", "all", "models alive at once for one tenant", Kind::kValue,
     set_count<&O::max_adapters_per_tenant, 1>},
    {"max-rank", "COUNT", "128", "largest LoRA rank", Kind::kValue, set_count<&O::max_rank, 1>},
    {"expert-rank", "divided|full", "divided",
     "of routed experts: max(1, rank / experts), or the whole rank", Kind::kValue, set_expert_rank},
    {"speculate", "none|mtp", "none",
     "mtp: samples are drafted by multi-token prediction, of the models that have it", Kind::kValue,
     set_speculate},
    {"max-parked", "COUNT", "10000", "polls held at once", Kind::kValue,
     set_count<&O::max_parked, 1>},
    {"max-result-bytes", "SIZE", "1/32 of --memory, 128MiB to 512MiB",
     "of results that are held; half for all, half divided by tenants", Kind::kValue,
     set_size<&O::max_result_bytes>},
    {"max-response-bytes", "SIZE", "1/64 of --memory, 64MiB to 256MiB",
     "of other responses being sent, likewise", Kind::kValue, set_size<&O::max_response_bytes>},
    {"max-remembered-bytes", "SIZE", "1/128 of --memory, at most 128MiB",
     "of numbers of samples and refused passes, against duplicates, likewise; the oldest go",
     Kind::kValue, set_size<&O::max_remembered_bytes>},
    {"max-queued-samples", "COUNT", "4096", "samples waiting; then 429", Kind::kValue,
     set_count<&O::max_queued_samples, 1>},
    {"max-queued-bytes", "SIZE", "1/16 of --memory, at most 1GiB",
     "of operations and samples, waiting and running, likewise; then 429", Kind::kValue,
     set_size<&O::max_queued_bytes>},
    {"max-queued-operations", "COUNT", "16384", "operations waiting, per model; then 429",
     Kind::kValue, set_count<&O::max_queued_operations, 1>},
    {"max-stability-bytes", "SIZE", "1GiB",
     "records of record_stability_info, per tenant; of more, the oldest go", Kind::kValue,
     set_size<&O::max_stability_bytes>},
    {"max-history", "COUNT", "10000",
     "ended sessions and runs without checkpoints that are remembered, per tenant", Kind::kValue,
     set_count<&O::max_history, 1>},
    {"expiry-grace", "DURATION", "1h",
     "an expired checkpoint's files stay so long, should the clock have been wrong", Kind::kValue,
     set_duration<&O::expiry_grace>},
    {"max-sessions-per-tenant", "COUNT", "4096", "sessions alive at once", Kind::kValue,
     set_count<&O::max_sessions_per_tenant, 1>},
    {"max-samplers-per-session", "COUNT", "65536", "sampling sessions of a session", Kind::kValue,
     set_count<&O::max_samplers_per_session, 1>},
    {"max-ephemeral", "COUNT", "256",
     "sampling sessions on unsaved weights, of a session; of more, the oldest end", Kind::kValue,
     set_count<&O::max_ephemeral, 1>},
    {"url-ttl", "DURATION", "3600s", "life of a signed URL", Kind::kValue,
     set_duration<&O::url_ttl>},
    {"shutdown-timeout", "DURATION", "30s", "to finish the running pass and queued saves",
     Kind::kValue, set_duration<&O::shutdown_timeout>},
    {"memory", "SIZE or SHARE", "80% of RAM", "memory to plan with", Kind::kValue,
     [](O& o, const std::string& name, const std::string& value) {
       o.memory = parse_size(name, value, physical_memory());
     }},
    {"offload", "DIR", "TMPDIR, else /tmp",
     "folder on a disk for activations of data too long for --memory", Kind::kValue,
     set_text<&O::offload>},
    {"max-disk", "SIZE", "no limit", "of all checkpoints together", Kind::kValue,
     set_size<&O::max_disk>},
    {"max-archive-bytes", "SIZE", "16GiB",
     "of archives packed for downloads, beside the checkpoints; for room the oldest go",
     Kind::kValue, set_size<&O::max_archive_bytes>},
    {"rate", "TENANT|*:KIND=N/s", "no limit",
     "of requests, trained-tokens or sampled-tokens; *: of each tenant; then 429; repeatable",
     Kind::kList, add_rate},
    {"quota", "TENANT|*:KIND=N", "no limit",
     "in all, of these or of disk-bytes; then 429; repeatable", Kind::kList, add_quota},
    {"accept-loss", "", "off", "start although many checkpoints' folders are missing: forget them",
     Kind::kFlag, set_switch<&O::accept_loss>},
    {"stable-reinforce", "on|off", "on", "off refuses that loss and record_stability_info",
     Kind::kValue, set_switch<&O::stable_reinforce>},
    {"dtype", "auto|bf16|f32", "auto", "arithmetic of the models", Kind::kValue, set_dtype},
    {"threads", "COUNT", "0: all cores", "of the engine", Kind::kValue, set_count<&O::threads, 0>},
};

const OptionRow* find_row(std::string_view name) {
  for (const OptionRow& row : kRows) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

std::string variable_name(std::string_view option) {
  std::string name = "STRATA_";
  for (const char c : option) {
    name += c == '-' ? '_' : static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  }
  return name;
}

// These two hold keys and not the option's file name.
bool holds_keys(std::string_view option) { return option == "keys" || option == "admin-keys"; }

void check_together(const ServeOptions& o) {
  const auto fail = [](const std::string& message) {
    throw Error(ErrorCode::kInvalidArgument, message);
  };
  if (o.models.empty()) fail("--model: no model is given; want NAME=DIR");
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
  check_distinct("rate", o.rates);
  check_distinct("quota", o.quotas);
  if (o.no_keys && (!o.listen.is_loopback() || !o.metrics_listen.is_loopback())) {
    fail("--no-keys: " + (o.listen.is_loopback() ? o.metrics_listen : o.listen).text() +
         " can be reached from other machines; listen on 127.0.0.1 or give --keys");
  }
}

}  // namespace

std::span<const OptionRow> serve_option_rows() { return kRows; }

OptionSource options_from_environment(const std::map<std::string, std::string>& variables) {
  OptionSource source{"environment", {}};
  for (const OptionRow& row : kRows) {
    const auto found = variables.find(variable_name(row.name));
    if (found == variables.end() || found->second.empty()) continue;
    std::vector<std::string>& values = source.values[std::string(row.name)];
    if (row.kind != Kind::kList) {
      values.push_back(found->second);
      continue;
    }
    for (size_t begin = 0; begin <= found->second.size();) {
      const size_t end = std::min(found->second.find(',', begin), found->second.size());
      if (end > begin) values.push_back(found->second.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  return source;
}

std::vector<std::string> unknown_variables(const std::map<std::string, std::string>& variables) {
  std::set<std::string> known = {"STRATA_LOG", "STRATA_CPU_PATH", "STRATA_CONFIG"};
  for (const OptionRow& row : kRows) known.insert(variable_name(row.name));
  std::vector<std::string> unknown;
  for (const auto& [name, value] : variables) {
    if (name.starts_with("STRATA_") && !known.contains(name)) unknown.push_back(name);
  }
  return unknown;
}

ServeOptions merge_options(std::span<const OptionSource> sources) {
  ServeOptions options;
  for (const OptionSource& source : sources) {
    for (const auto& [name, values] : source.values) {
      if (find_row(name) != nullptr) continue;
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{}: '{}' is no option of strata serve", source.where, name));
    }
  }
  for (const OptionRow& row : kRows) {
    const std::string name(row.name);
    for (const OptionSource& source : sources) {
      const auto found = source.values.find(name);
      if (found == source.values.end()) continue;
      if (source.where == "environment" && holds_keys(name)) {
        (name == "keys" ? options.keys_text : options.admin_keys_text) = found->second.front();
        break;
      }
      if (row.kind != Kind::kList && found->second.size() != 1) {
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("{}: --{} is given {} times, want one value", source.where, name,
                                found->second.size()));
      }
      for (const std::string& value : found->second) row.set(options, name, value);
      break;
    }
  }
  check_together(options);
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

void raise_file_limit(const ServeOptions& options) {
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
