// SPDX-License-Identifier: Apache-2.0
// Options of `strata serve`: a table of rows (base/option_table.h) from which the command line, the
// environment (STRATA_MAX_BODY for max-body) and the TOML file are all read.
// Order: command line, environment, file, default. Lists are replaced, not joined. STRATA_KEYS and
// STRATA_ADMIN_KEYS hold keys, not the name of a file.
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/option_table.h"
#include "server/tinker/usage_limit.h"

namespace strata::server {

struct HostPort {
  std::string host;
  int port = 0;                            // 0: any free one
  std::string path = {};                   // unix:PATH: then neither host nor port
  [[nodiscard]] bool is_loopback() const;  // or a unix socket
  [[nodiscard]] std::string text() const;
};

struct ServeOptions {
  std::vector<std::string> models;          // NAME=DIR
  std::vector<std::string> adapters;        // NAME=DIR
  std::vector<std::string> aliases;         // NAME=MODEL
  std::vector<std::string> tokenizers;      // NAME=ID
  std::vector<std::string> chat_templates;  // FILE of all models, NAME=FILE of one
  std::string vars;                         // for templates, a JSON object; empty: none
  HostPort listen = {"127.0.0.1", 8000};
  HostPort metrics_listen = {"127.0.0.1", 9464};
  bool names_metrics_listen = false;  // else another port serves where that one is taken
  int64_t socket_mode = 0600;
  std::string tls_cert;  // PEM files; empty: in the clear
  std::string tls_key;
  std::string public_url;  // without a slash at its end
  std::string data;
  std::string db;  // empty: SQLite in `data`
  std::string keys;
  std::string admin_keys;
  std::string keys_text;
  std::string admin_keys_text;
  bool no_keys = false;
  std::string audit;  // empty: none
  std::string trace;  // empty: none
  // Seconds.
  double result_ttl = 1800;
  double gap_timeout = 600;
  double session_timeout = 300;
  double poll_hold = 30;
  double header_timeout = 10;
  double body_timeout = 30;
  double keepalive = 120;
  double url_ttl = 3600;
  double shutdown_timeout = 30;
  double schema_seconds = 2;
  int64_t request_memory = 0;  // bytes; 0: what the shares below come to
  // Bytes; 0: a share of --request-memory or --memory, see resolve_size_limits()
  // (server/tinker/budget.h).
  int64_t max_body = 0;
  int64_t max_body_bytes = 0;
  int64_t max_queued_bytes = 0;
  int64_t max_result_bytes = 0;
  int64_t max_response_bytes = 0;
  int64_t max_download_bytes = 0;
  int64_t max_remembered_bytes = 0;
  int64_t max_connection_bytes = 0;
  int64_t max_schema_bytes = 0;
  int64_t max_sample_body = 16LL << 20;
  int64_t max_small_body = 128LL << 10;
  int64_t min_body_rate = 8 << 10;      // bytes a second
  int64_t min_download_rate = 8 << 10;  // likewise
  int64_t max_downloads_per_tenant = 64;
  int64_t max_connections = 0;               // 0: see connection_limit()
  int64_t max_connections_per_address = 0;   // 0: half of them
  int64_t max_handshakes = 0;                // unfinished; 0: see resolve_size_limits()
  std::vector<std::string> trusted_proxies;  // addresses, networks, "unix"
  std::string limits = "default";            // or small, large: of the rows in limit_presets.cc
  int64_t max_adapters = 64;
  int64_t max_adapters_per_tenant = 0;  // 0: its share
  int64_t max_rank = 128;
  int64_t max_parked = 10000;
  int64_t max_queued_samples = 4096;
  int64_t max_queued_operations = 16384;
  int64_t max_stability_bytes = 1LL << 30;
  int64_t max_history = 10000;
  int64_t max_sessions_per_tenant = 4096;
  int64_t max_samplers_per_session = 65536;
  int64_t max_samplers_per_tenant = 262144;
  int64_t max_ephemeral = 256;
  int64_t memory = 0;    // bytes; 0: 80 % of RAM
  std::string offload;   // folder; empty: that of temporary files
  int64_t max_disk = 0;  // bytes; 0: no limit
  std::vector<UsageLimit> rates;
  std::vector<UsageLimit> quotas;
  int64_t max_archive_bytes = 16LL << 30;
  bool merged = false;
  bool accept_loss = false;
  bool allow_loose_modes = false;
  bool stable_reinforce = true;
  std::string dtype = "auto";
  std::string weights = "auto";
  std::string expert_rank = "divided";
  int64_t context = 0;  // positions of a sequence, at most; 0: the model's
  std::string speculate = "none";
  int64_t draft_tokens = 1;
  bool prefix_cache = true;
  int64_t threads = 0;  // 0: all cores
  int64_t stages = 1;
  std::string ranks;       // how processes divide each model; empty: this one is alone
  std::string stands_for;  // for people: what a short command line stands for, or empty
};

// Bound to `options`, which outlive it.
OptionTable option_table_of(ServeOptions& options);

// What one source gives: values by long name.
struct OptionSource {
  std::string where;  // "command line", "environment", or the file's path
  std::map<std::string, std::vector<std::string>> values;
};

// The environment, from `variables` {"STRATA_MAX_BODY", "64MiB"}. Names that are no option are left
// out: a container platform sets some of its own; unknown_variables() lists them for a warning.
OptionSource options_from_environment(const std::map<std::string, std::string>& variables);
std::vector<std::string> unknown_variables(const std::map<std::string, std::string>& variables);

// The TOML file: long names to a value or a list. An unknown key, a table or a wrong type is an
// Error with the line.
OptionSource options_from_file(const std::string& path);

// `sources` from the strongest to the weakest. Checks every value, then what must hold between
// them.
ServeOptions merge_options(std::span<const OptionSource> sources);

// What the operator should be told at start.
std::vector<std::string> option_warnings(const ServeOptions& options);

// max_connections, or what max_parked needs.
int64_t connection_limit(const ServeOptions& options);

// Raises RLIMIT_NOFILE to its hard limit; an Error when that is too low for the connections and the
// files that the server opens itself.
void ensure_file_limit(const ServeOptions& options);

// "127.0.0.1:8000", "[::1]:8000" or "unix:/run/strata.sock".
HostPort parse_host_port(const std::string& name, const std::string& text);

}  // namespace strata::server
