// SPDX-License-Identifier: Apache-2.0
#include "server/part_options.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

namespace strata::server {
namespace {

constexpr int64_t kMetricsConnections = 64;

}  // namespace

KeySources key_sources(const ServeOptions& options) {
  KeySources sources;
  sources.keys_file = options.keys;
  sources.admin_keys_file = options.admin_keys;
  sources.keys_text = options.keys_text;
  sources.admin_keys_text = options.admin_keys_text;
  sources.no_keys = options.no_keys;
  return sources;
}

std::vector<std::string> operator_folders(const ServeOptions& options, const DataDir& data,
                                          const BaseNames& names) {
  std::vector<std::string> out = names.directories();
  for (const BaseName& name : names.names()) out.push_back(name.adapter);
  out.push_back(data.path());
  std::error_code none;  // then there is none to tell of
  out.push_back(options.offload.empty() ? std::filesystem::temp_directory_path(none).string()
                                        : options.offload);
  return out;
}

ServiceOptions service_options(const ServeOptions& options, const Budget& budget,
                               const DataDir& data, const BaseNames& names, int64_t boot) {
  ServiceOptions out;
  out.folders = operator_folders(options, data, names);
  out.futures = {.secret = data.secret(),
                 .boot = boot,
                 .result_ttl = options.result_ttl,
                 .poll_hold = options.poll_hold,
                 .accounts = budget.accounts};
  out.session_timeout = options.session_timeout;
  out.max_rank = options.max_rank;
  out.max_body = options.max_body;
  out.max_queued_samples = options.max_queued_samples;
  // As floats they take at most a quarter of the queue, as one command may.
  out.max_data_values = std::min(options.max_body, options.max_queued_bytes / 16);
  out.max_stability_bytes = options.max_stability_bytes;
  out.max_sessions = options.max_sessions_per_tenant;
  out.max_samplers = options.max_samplers_per_session;
  out.max_tenant_samplers = options.max_samplers_per_tenant;
  out.max_ephemerals = options.max_ephemeral;
  out.stable_reinforce = options.stable_reinforce;
  out.remembered_bytes = budget.remembered;
  out.sampler_bytes = budget.samplers;
  return out;
}

HttpOptions http_options(const ServeOptions& options, const Budget& budget) {
  HttpOptions out;
  out.host = options.listen.host;
  out.port = options.listen.port;
  out.socket_path = options.listen.path;
  out.socket_mode = static_cast<unsigned>(options.socket_mode);
  out.tls = {options.tls_cert, options.tls_key};
  out.public_url = options.public_url;
  out.header_timeout = options.header_timeout;
  out.body_timeout = options.body_timeout;
  out.keepalive = options.keepalive;
  out.max_body = static_cast<uint64_t>(options.max_body);
  out.max_sample_body = static_cast<uint64_t>(options.max_sample_body);
  out.max_small_body = static_cast<uint64_t>(options.max_small_body);
  out.accounts = budget.accounts;
  out.min_body_rate = static_cast<double>(options.min_body_rate);
  out.max_downloads_per_tenant = options.max_downloads_per_tenant;
  out.min_download_rate = static_cast<double>(options.min_download_rate);
  out.connections = budget.connections;
  out.max_handshakes = options.max_handshakes;
  out.proxies = TrustedProxies(options.trusted_proxies);
  out.max_connections = connection_limit(options);
  out.max_connections_per_address = options.max_connections_per_address > 0
                                        ? options.max_connections_per_address
                                        : std::max<int64_t>(1, out.max_connections / 2);
  return out;
}

HttpOptions metrics_options(const ServeOptions& options, int port) {
  HttpOptions out;
  out.option = "--metrics-listen";
  out.host = options.metrics_listen.host;
  out.port = port;
  out.socket_path = options.metrics_listen.path;
  out.socket_mode = static_cast<unsigned>(options.socket_mode);
  out.max_body = 0;
  out.max_connections = kMetricsConnections;
  return out;
}

}  // namespace strata::server
