// SPDX-License-Identifier: Apache-2.0
// The options of strata serve, a row each.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>

#include "base/option_values.h"
#include "base/process_memory.h"
#include "server/tinker/options/options.h"

namespace strata::server {
namespace {

bool parse_switch(const std::string& name, const std::string& value) {
  if (value == "on" || value == "true" || value == "1") return true;
  if (value == "off" || value == "false" || value == "0") return false;
  refuse_value(name, value, "on or off");
}

int64_t parse_count(const std::string& name, const std::string& value, int64_t least) {
  int64_t count = 0;
  const char* end = value.data() + value.size();
  const auto [rest, error] = std::from_chars(value.data(), end, count);
  if (error != std::errc{} || rest != end || count < least || count > 1'000'000'000) {
    refuse_value(name, value, fmt::format("a whole number from {} to 1000000000", least));
  }
  return count;
}

double parse_gap_timeout(const std::string& name, const std::string& text) {
  const double seconds = parse_duration(name, text);
  if (seconds < 1) refuse_value(name, text, "at least 1s");
  return seconds;
}

double parse_poll_hold(const std::string& name, const std::string& text) {
  const double seconds = parse_duration(name, text);
  if (seconds > 44) refuse_value(name, text, "at most 44s: clients give a poll up after 45s");
  return seconds;
}

int64_t parse_bytes(const std::string& name, const std::string& text) {
  return parse_size(name, text);
}

int64_t parse_max_body(const std::string& name, const std::string& text) {
  const int64_t bytes = parse_size(name, text);
  if (bytes > 1LL << 30) refuse_value(name, text, "at most 1GiB");
  return bytes;
}

int64_t parse_memory(const std::string& name, const std::string& text) {
  return parse_memory_size(name, text, read_usable_memory());
}

std::string parse_public_url(const std::string& name, const std::string& text) {
  std::string url = text;
  while (url.ends_with('/')) url.pop_back();
  const size_t scheme = url.starts_with("https://") ? 8 : url.starts_with("http://") ? 7 : 0;
  const size_t host_end = std::min(url.find('/', scheme), url.size());
  const bool has_host = scheme != 0 && host_end > scheme && url[scheme] != ':';
  const bool is_clean = url.find_first_of("?#@ \t\r\n\"<>\\") == std::string::npos;
  if (!has_host || !is_clean) {
    refuse_value(name, text, "http(s)://HOST[:PORT][/PATH] without user, query or fragment");
  }
  return url;
}

int64_t parse_mode(const std::string& name, const std::string& text) {
  int64_t mode = 0;
  const char* end = text.data() + text.size();
  const auto [rest, fault] = std::from_chars(text.data(), end, mode, 8);
  if (fault != std::errc{} || rest != end || mode < 0 || mode > 0777)
    refuse_value(name, text, "an octal mode like 0660");
  return mode;
}

std::string parse_text(const std::string& name, const std::string& text) {
  if (text.empty()) refuse_value(name, text, "a text that is not empty");
  return text;
}

// How defaults are shown.
std::string same_text(const std::string& text) { return text; }
std::string address_text(const HostPort& address) { return address.text(); }
std::string switch_text(bool is_on) { return is_on ? "on" : "off"; }
std::string seconds_text(double seconds) { return fmt::format("{:g}s", seconds); }
std::string size_text(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB"};
  size_t unit = 0;
  for (; unit + 1 < std::size(kUnits) && bytes % 1024 == 0; ++unit) bytes /= 1024;
  return fmt::format("{}{}", bytes, kUnits[unit]);
}

// Rows of the kinds that serve has.
template <typename Field, typename Parse, typename Show>
OptionRow& add_value(OptionTable& t, const std::string& name, const std::string& unit, Field& field,
                     const std::string& help, Parse parse, Show show) {
  Field* at = &field;
  return t.add({.name = name,
                .unit = unit,
                .help = help,
                .default_text = show(field),
                .set = [at, name, parse](const std::string& text) { *at = parse(name, text); },
                .text = [at, show] { return show(*at); }});
}
OptionRow& add_text(OptionTable& t, const std::string& name, const std::string& unit,
                    std::string& field, const std::string& help) {
  return add_value(t, name, unit, field, help, parse_text, same_text);
}
OptionRow& add_texts(OptionTable& t, const std::string& name, const std::string& unit,
                     std::vector<std::string>& field, const std::string& help) {
  return t.texts(name, field, help).in(unit);
}
OptionRow& add_address(OptionTable& t, const std::string& name, HostPort& field,
                       const std::string& help) {
  return add_value(t, name, "HOST:PORT|unix:PATH", field, help, parse_host_port, address_text);
}
OptionRow& add_duration(OptionTable& t, const std::string& name, double& field,
                        const std::string& help,
                        double (*parse)(const std::string&, const std::string&) = parse_duration) {
  return add_value(t, name, "DURATION", field, help, parse, seconds_text);
}
OptionRow& add_size(OptionTable& t, const std::string& name, int64_t& field,
                    const std::string& help,
                    int64_t (*parse)(const std::string&, const std::string&) = parse_bytes) {
  return add_value(t, name, "SIZE", field, help, parse, size_text);
}
OptionRow& add_count(OptionTable& t, const std::string& name, int64_t& field, int64_t least,
                     const std::string& help) {
  const auto parse = [least](const std::string& row, const std::string& text) {
    return parse_count(row, text, least);
  };
  return add_value(t, name, "COUNT", field, help, parse,
                   [](int64_t count) { return fmt::format("{}", count); });
}
OptionRow& add_switch(OptionTable& t, const std::string& name, bool& field,
                      const std::string& help) {
  return add_value(t, name, "on|off", field, help, parse_switch, switch_text);
}
// Which a file or the environment may also switch off.
OptionRow& add_flag(OptionTable& t, const std::string& name, bool& field, const std::string& help) {
  OptionRow& row = add_switch(t, name, field, help);
  row.kind = OptionKind::kFlag;
  return row;
}
std::string joined_texts(const std::vector<UsageLimit>& limits) {
  std::string all;
  for (const UsageLimit& limit : limits) all += (all.empty() ? "" : ",") + limit.text;
  return all;
}

OptionRow& add_limits(OptionTable& t, const std::string& name, const std::string& unit,
                      std::vector<UsageLimit>& field, const std::string& help,
                      UsageLimit (*parse)(const std::string&, const std::string&)) {
  std::vector<UsageLimit>* at = &field;
  return t.add(
      {.name = name,
       .unit = unit,
       .help = help,
       .kind = OptionKind::kList,
       .default_text = "no limit",
       .set = [at, name, parse](const std::string& text) { at->push_back(parse(name, text)); },
       .text = [at] { return joined_texts(*at); }});
}

// Models, addresses, files and keys.
void add_address_rows(OptionTable& t, ServeOptions& o) {
  t.group("Models, addresses and keys");
  add_texts(
      t, "model", "NAME=DIR", o.models,
      "a base model: its name and Hugging Face directory or GGUF file, or an adapter's directory, "
      "which is served with its base; DIR alone has its folder's name; repeatable");
  add_texts(
      t, "adapter", "NAME=DIR", o.adapters,
      "a PEFT LoRA folder of a served model: a model to sample; DIR alone has its folder's name; "
      "repeatable");
  add_texts(t, "alias", "NAME=MODEL", o.aliases, "one more name for a model; repeatable");
  add_texts(t, "tokenizer", "NAME=ID", o.tokenizers, "tokenizer_id in get_info; repeatable")
      .by_default("the model's directory");
  add_texts(t, "chat-template", "[NAME=]FILE", o.chat_templates,
            "Jinja file in place of a model's own chat template (without NAME: every model's); "
            "repeatable");
  add_text(t, "vars", "JSON", o.vars,
           "variables for chat templates, like {\"enable_thinking\": false}; those of a request "
           "win");
  add_address(t, "listen", o.listen, "where the API listens");
  t.integer("port", o.listen.port, {0, 65535, "0 to 65535"}, "of --listen; 0: any free one")
      .in("PORT")
      .by_default("that of --listen");
  add_value(t, "socket-mode", "OCTAL", o.socket_mode, "of the files of unix sockets", parse_mode,
            [](int64_t mode) { return fmt::format("{:04o}", mode); });
  add_text(t, "tls-cert", "FILE", o.tls_cert,
           "speak TLS at --listen: certificate and issuers' in PEM; see SIGHUP");
  add_text(t, "tls-key", "FILE", o.tls_key, "the certificate's private key in PEM");
  add_texts(
      t, "trusted-proxy", "CIDR|unix", o.trusted_proxies,
      "believe X-Forwarded-For of peers there (10.0.0.0/8; unix: at a socket's file), for the "
      "audit log and --max-connections-per-address; repeatable");
  add_value(t, "public-url", "URL", o.public_url, "what clients call the server", parse_public_url,
            same_text);
  add_address(t, "metrics-listen", o.metrics_listen, "where /metrics listens");
  add_text(t, "data", "DIR", o.data, "state folder: checkpoints, their records and its secret")
      .also("state");
  add_text(t, "db", "URL", o.db, "postgresql:// address of the state store")
      .by_default("SQLite in --data");
  add_text(t, "keys", "FILE", o.keys,
           "a line a key: 'tml-...|sha256:HEX [TENANT [read-only|sample-only] [expires=DATE] "
           "[adapters=NAME,...]]'");
  add_text(t, "admin-keys", "FILE", o.admin_keys, "keys of administrators, same form");
  add_flag(t, "no-keys", o.no_keys, "serve this machine alone, without keys");
  add_text(t, "audit", "FILE", o.audit,
           "a line of JSON for each request that changes state: who, what, about what, its answer");
  t.retired("audit-sync", "lines of the audit log are written in order and not waited for");
  add_text(
      t, "trace", "FILE", o.trace,
      "timeline to write at the end, for ui.perfetto.dev (docs/timeline.md); it holds the last "
      "131,072 spans of each thread");
}

// How long things may take.
void add_time_rows(OptionTable& t, ServeOptions& o) {
  t.group("Times");
  add_duration(t, "result-ttl", o.result_ttl, "how long a result is kept after completion");
  add_duration(t, "gap-timeout", o.gap_timeout, "wait for a missing seq_id; at least 1s",
               parse_gap_timeout);
  add_duration(t, "session-timeout", o.session_timeout, "a session without a sign of life ends");
  add_duration(t, "poll-hold", o.poll_hold, "how long retrieve_future is held", parse_poll_hold);
  add_duration(t, "header-timeout", o.header_timeout, "for the head of a request");
  add_duration(t, "body-timeout", o.body_timeout, "without progress in a body");
  add_duration(t, "keepalive", o.keepalive, "an idle connection is closed");
  add_duration(t, "schema-seconds", o.schema_seconds,
               "for compiling a schema or a grammar that answers fit; then 400");
}

void add_request_rows(OptionTable& t, ServeOptions& o) {
  t.group("Requests and connections");
  add_size(t, "max-body", o.max_body, "of training data, compressed and decompressed; at most 1GiB",
           parse_max_body)
      .by_default("64MiB, if --memory is 2GiB");
  add_size(t, "max-sample-body", o.max_sample_body, "of asample; at most --max-body");
  add_size(t, "max-small-body", o.max_small_body,
           "of requests but training data and samples; at most --max-body");
  add_size(t, "max-body-bytes", o.max_body_bytes,
           "of all bodies being read, at least four times --max-body; shared by tenants")
      .by_default("1/32 of --memory, 256MiB to 512MiB")
      .in_file();
  add_size(t, "min-body-rate", o.min_body_rate,
           "a second, after the first --body-timeout of a body");
  add_size(t, "min-download-rate", o.min_download_rate,
           "a second, after the first --body-timeout of a file or another response");
  add_count(t, "max-downloads-per-tenant", o.max_downloads_per_tenant, 1,
            "files being sent at once for one tenant; then 503")
      .in_file();
  add_count(t, "max-connections", o.max_connections, 1, "open at once; more are refused")
      .by_default("--max-parked and 1024");
  add_count(t, "max-connections-per-address", o.max_connections_per_address, 1,
            "open at once; loopback addresses and unix sockets have no limit")
      .by_default("half of --max-connections");
  add_size(t, "max-connection-bytes", o.max_connection_bytes,
           "that open connections take: with their headers 12KiB or more each, through TLS 112KiB; "
           "half of it for one address; then 503")
      .by_default("1/48 of --memory, at most what --max-connections take")
      .in_file();
  add_count(t, "max-handshakes", o.max_handshakes, 1,
            "TLS handshakes unfinished at once; of more, the oldest of the address with the most "
            "ends")
      .by_default("512, at most half of what --max-connection-bytes holds")
      .in_file();
}

void add_adapter_rows(OptionTable& t, ServeOptions& o) {
  t.group("Adapters");
  t.choice(
       "limits", o.limits, {"small", "default", "large"},
       "of what waits, is alive and is kept: for some clients on a machine of a few GiB, or for "
       "hundreds of tenants; a limit's own option counts")
      .in("small|default|large");
  add_count(t, "max-adapters", o.max_adapters, 1,
            "models alive at once; shared by tenants, as the bytes that they take");
  add_count(t, "max-adapters-per-tenant", o.max_adapters_per_tenant, 1,
            "models alive at once for one tenant")
      .by_default("its share");
  add_count(t, "max-rank", o.max_rank, 1, "largest LoRA rank");
  t.choice("expert-rank", o.expert_rank, {"divided", "full"},
           "of routed experts: max(1, rank / experts), or the whole rank")
      .in("divided|full")
      .results();
  t.choice("speculate", o.speculate, {"none", "mtp"},
           "mtp: samples are drafted by multi-token prediction, of the models that have it")
      .in("none|mtp");
  t.integer("draft-tokens", o.draft_tokens, {1, 16, "1 to 16"},
            "with --speculate mtp: tokens of a sample that are drafted at once");
  add_switch(t, "prefix-cache", o.prefix_cache,
             "off: a prompt is read whole, also where a sample of its tenant began as it does");
}

// What may wait, and what is kept.
void add_waiting_rows(OptionTable& t, ServeOptions& o) {
  t.group("What waits and what is kept");
  add_count(t, "max-parked", o.max_parked, 1, "polls held at once").in_file();
  add_size(t, "max-result-bytes", o.max_result_bytes, "of results that are held; shared by tenants")
      .by_default("1/32 of --memory, 128MiB to 512MiB")
      .in_file();
  add_size(t, "max-response-bytes", o.max_response_bytes, "of other responses being sent, likewise")
      .by_default("1/64 of --memory, 64MiB to 256MiB")
      .in_file();
  add_size(t, "max-download-bytes", o.max_download_bytes,
           "of pieces of files being sent, 64KiB each, likewise; then 503")
      .by_default("1/256 of --memory, at most 64MiB")
      .in_file();
  add_size(
      t, "max-remembered-bytes", o.max_remembered_bytes,
      "half of numbers of operations and samples, against duplicates, half of sampling sessions "
      "in use, likewise; the oldest go, and come back from the store")
      .by_default("1/128 of --memory, at most 128MiB")
      .in_file();
  add_size(t, "max-schema-bytes", o.max_schema_bytes,
           "of schemas and grammars, compiled for answers that fit them, likewise; the oldest go")
      .by_default("1/128 of --memory, at most 256MiB")
      .in_file();
  add_count(t, "max-queued-samples", o.max_queued_samples, 1, "samples waiting; then 429")
      .in_file();
  add_size(t, "max-queued-bytes", o.max_queued_bytes,
           "of operations and samples, waiting and running, likewise; then 429")
      .by_default("1/16 of --memory, at most 1GiB")
      .in_file();
  add_count(t, "max-queued-operations", o.max_queued_operations, 1,
            "operations waiting, per model; then 429")
      .in_file();
  add_size(t, "max-stability-bytes", o.max_stability_bytes,
           "records of record_stability_info, per tenant; of more, the oldest go")
      .in_file();
  add_count(t, "max-history", o.max_history, 1,
            "ended sessions and runs without checkpoints that are remembered, per tenant")
      .in_file();
  t.retired("expiry-grace", "a clock that jumps while the server runs makes nothing old");
  add_count(t, "max-sessions-per-tenant", o.max_sessions_per_tenant, 1, "sessions alive at once")
      .in_file();
  add_count(t, "max-samplers-per-session", o.max_samplers_per_session, 1,
            "sampling sessions of a session")
      .in_file();
  add_count(t, "max-samplers-per-tenant", o.max_samplers_per_tenant, 1,
            "sampling sessions that the store keeps of a tenant; those of sessions that ended go "
            "from half of it on; then 429")
      .in_file();
  add_count(t, "max-ephemeral", o.max_ephemeral, 1,
            "sampling sessions on unsaved weights, of a session; of more, the oldest end")
      .in_file();
}

void add_memory_and_disk_rows(OptionTable& t, ServeOptions& o) {
  add_size(t, "memory", o.memory, "memory to plan with", parse_memory)
      .in("SIZE or SHARE")
      .by_default("80% of RAM");
  add_size(t, "request-memory", o.request_memory,
           "of --memory for what requests hold: connections, bodies, queues, results and answers, "
           "of which each tenant has its share",
           parse_memory)
      .in("SIZE or SHARE")
      .by_default("some 18% of --memory");
  add_text(t, "offload", "DIR", o.offload,
           "folder on a disk for activations of data too long for --memory")
      .by_default("TMPDIR, else /tmp");
  add_size(t, "max-disk", o.max_disk, "of all checkpoints together").by_default("no limit");
  add_size(
      t, "max-archive-bytes", o.max_archive_bytes,
      "of archives packed for downloads, besides the checkpoints, shared by tenants; for space a "
      "tenant's oldest go, then 429; one that is larger: 413")
      .in_file();
}

void add_rate_and_quota_rows(OptionTable& t, ServeOptions& o) {
  add_limits(t, "rate", "TENANT|*:KIND=N/s", o.rates,
             "of requests, trained-tokens, sampled-tokens or prompt-tokens; *: of each tenant; "
             "then 429; repeatable",
             parse_rate);
  add_limits(t, "quota", "TENANT|*:KIND=N", o.quotas,
             "in all, of these or of disk-bytes; then 429; repeatable", parse_quota);
}

void add_machine_rows(OptionTable& t, ServeOptions& o) {
  t.choice("dtype", o.dtype, {"auto", "bf16", "f32"}, "arithmetic of the models")
      .in("auto|bf16|f32")
      .results();
  t.choice("weights", o.weights, {"auto", "narrow", "bf16"},
           "of files in 4 to 8 bits: auto keeps them so in memory where it can, bf16 dequantises "
           "them, to the same results; narrow: an error where none can be kept")
      .in("auto|narrow|bf16");
  add_count(t, "context", o.context, 0,
            "positions of a sequence, prompt and answer together, at most; of models with short "
            "and long RoPE factors more than those of the short ones takes the long ones for all")
      .by_default("0: the model's, or those of its short factors")
      .results();
  add_count(t, "threads", o.threads, 0, "of the engine").by_default("0: all cores");
  t.integer("stages", o.stages, {1, 64, "1 to 64"},
            "that the layers of each model are divided into, each with its part of --threads; "
            "no result depends on it");
  t.text("ranks", o.ranks,
         "pipeline=P,tensor=T or pipeline=P,expert=E (or one of them): as many processes as their "
         "product, which mpirun or srun starts, have a part of each model: its layers, matrices or "
         "experts; the first one is the server (docs/cluster.md)")
      .in("DIVISION");
}

void add_remaining_rows(OptionTable& t, ServeOptions& o) {
  t.group("Machine, limits and the rest");
  add_duration(t, "url-ttl", o.url_ttl, "life of a signed URL");
  add_duration(t, "shutdown-timeout", o.shutdown_timeout,
               "to finish the running pass and queued saves");
  add_memory_and_disk_rows(t, o);
  add_flag(t, "merged", o.merged,
           "checkpoints may be downloaded merged into their model (archive?merged=true): who may "
           "download one gets the model's weights");
  add_rate_and_quota_rows(t, o);
  add_flag(t, "accept-loss", o.accept_loss,
           "start although many checkpoints' folders are missing: forget them");
  add_flag(t, "allow-loose-modes", o.allow_loose_modes,
           "start although others may read the data directory, and leave its modes");
  add_switch(t, "stable-reinforce", o.stable_reinforce,
             "off refuses that loss and record_stability_info");
  add_machine_rows(t, o);
}

}  // namespace

OptionTable option_table_of(ServeOptions& o) {
  OptionTable t;
  add_address_rows(t, o);
  add_time_rows(t, o);
  add_request_rows(t, o);
  add_adapter_rows(t, o);
  add_waiting_rows(t, o);
  add_remaining_rows(t, o);
  t.mark_common({"model",   "adapter",      "alias",          "listen", "port",   "tls-cert",
                 "tls-key", "public-url",   "metrics-listen", "data",   "keys",   "admin-keys",
                 "no-keys", "max-adapters", "max-rank",       "memory", "limits", "rate",
                 "quota",   "dtype",        "threads"});
  return t;
}

}  // namespace strata::server
