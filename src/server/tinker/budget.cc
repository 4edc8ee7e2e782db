// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/budget.h"

#include <fmt/format.h>

#include <algorithm>

#include "server/http/server.h"
#include "server/http/write_response.h"

namespace strata::server {
namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kMostBody = 64 * kMiB;
constexpr int64_t kUsefulBody = 128 << 10;   // a small compressed request, with its decoder
constexpr int64_t kUsefulResult = 16 << 10;  // of short data
constexpr int64_t kUsefulGrammar = 1 << 20;  // of a schema of a few properties, with its masks
constexpr int64_t kMostHandshakes = 512;
constexpr int64_t kBodiesOfLargest = 4;  // so many of the largest size at once
constexpr int64_t kPartForSigns = 4;     // of life: of what requests may hold that are answered

// memory / part, but not below `least` where 1/16 of the memory reaches so far.
int64_t share(int64_t memory, int64_t part, int64_t least, int64_t most) {
  return std::min(most, std::max(memory / part, std::min(least, memory / 16)));
}

// The same parts as those of --memory below, of all that they come to there.
void divide_request_memory(ServeOptions& o) {
  constexpr int64_t kAll = 139;  // of 768 parts of --memory
  const auto fill = [&](int64_t& bytes, int64_t parts) {
    if (bytes == 0) bytes = std::max<int64_t>(1, o.request_memory * parts / kAll);
  };
  fill(o.max_body_bytes, 24);
  fill(o.max_queued_bytes, 48);
  fill(o.max_result_bytes, 24);
  fill(o.max_remembered_bytes, 6);
  fill(o.max_response_bytes, 12);
  fill(o.max_connection_bytes, 16);
  fill(o.max_schema_bytes, 6);
  fill(o.max_download_bytes, 3);
}

}  // namespace

void resolve_size_limits(ServeOptions& o, int64_t memory) {
  if (o.request_memory > 0) divide_request_memory(o);
  if (o.max_body_bytes == 0) {
    const int64_t least = o.max_body > 0 ? 0 : std::min(kBodiesOfLargest * kMostBody, memory / 8);
    o.max_body_bytes = std::max(least, share(memory, 32, 0, 512 * kMiB));
  }
  if (o.max_body == 0) o.max_body = std::min(kMostBody, o.max_body_bytes / kBodiesOfLargest);
  o.max_body_bytes = std::max(o.max_body_bytes, kBodiesOfLargest * o.max_body);
  if (o.max_queued_bytes == 0) o.max_queued_bytes = share(memory, 16, 0, 1024 * kMiB);
  if (o.max_result_bytes == 0) o.max_result_bytes = share(memory, 32, 128 * kMiB, 512 * kMiB);
  if (o.max_remembered_bytes == 0) o.max_remembered_bytes = share(memory, 128, 0, 128 * kMiB);
  if (o.max_response_bytes == 0) o.max_response_bytes = share(memory, 64, 64 * kMiB, 256 * kMiB);
  if (o.max_connection_bytes == 0) {
    const int64_t all = connection_limit(o) * connection_bytes(!o.tls_cert.empty());
    o.max_connection_bytes = share(memory, 48, 0, all);
  }
  if (o.max_handshakes == 0) {  // the rest is for connections that speak
    const int64_t half = o.max_connection_bytes / connection_bytes(true) / 2;
    o.max_handshakes = std::clamp<int64_t>(half, 1, kMostHandshakes);
  }
  if (o.max_schema_bytes == 0) o.max_schema_bytes = share(memory, 128, 0, 256 * kMiB);
  if (o.max_download_bytes == 0) o.max_download_bytes = share(memory, 256, 0, 64 * kMiB);
}

Budget::Budget(const ServeOptions& options)
    : remembered(options.max_remembered_bytes - options.max_remembered_bytes / 2),
      samplers(options.max_remembered_bytes / 2),
      connections(options.max_connection_bytes),
      grammars(options.max_schema_bytes, kUsefulGrammar),
      archives(options.max_archive_bytes) {
  const int64_t of_connection = connection_bytes(!options.tls_cert.empty());
  const int64_t answered =
      std::min(options.max_connection_bytes, connection_limit(options) * of_connection);
  accounts.of(Use::kRequest) = SharedLimit(answered, of_connection);
  accounts.of(Use::kSign) = SharedLimit(answered / kPartForSigns, of_connection);
  accounts.of(Use::kBody) = SharedLimit(options.max_body_bytes, kUsefulBody);
  accounts.of(Use::kQueue) = SharedLimit(options.max_queued_bytes, kUsefulBody);
  accounts.of(Use::kSample) = SharedLimit(options.max_queued_samples);
  accounts.of(Use::kResult) = SharedLimit(options.max_result_bytes, kUsefulResult);
  accounts.of(Use::kPoll) = SharedLimit(options.max_parked);
  accounts.of(Use::kResponse) = SharedLimit(options.max_response_bytes, Pieces::kMost);
  accounts.of(Use::kDownload) = SharedLimit(options.max_download_bytes, Pieces::kMost);
}

std::vector<Budget::Row> Budget::bytes_by_use() const {
  const auto row = [](const char* name, const SharedLimit& limit) {
    return Row{name, limit.limit(), limit.used()};
  };
  return {row("bodies", accounts.of(Use::kBody)),
          row("queue", accounts.of(Use::kQueue)),
          row("results", accounts.of(Use::kResult)),
          row("responses", accounts.of(Use::kResponse)),
          row("downloads", accounts.of(Use::kDownload)),
          row("remembered", remembered),
          row("samplers", samplers),
          row("connections", connections),
          row("grammars", grammars)};
}

void Budget::set_num_tenants(int64_t count) {
  accounts.set_num_tenants(count);
  accounts.of(Use::kResponse).set_num_tenants(count + 1);  // who has no key reads the page
  for (SharedLimit* limit : {&remembered, &samplers, &grammars, &archives})
    limit->set_num_tenants(count);
  for (SharedLimit& limit : of_engines) limit.set_num_tenants(count);
}

std::vector<std::string> Budget::warnings() const {
  std::vector<std::string> out;
  const auto warn_of_small_limit = [&](const char* option, Use use, int64_t useful) {
    const SharedLimit& limit = accounts.of(use);
    if (limit.own_part() >= useful) return;
    out.push_back(fmt::format(
        "{} {}: while others hold all they can, a tenant is sure of {} bytes, and a small request "
        "takes {}; raise it, or --memory",
        option, limit.limit(), limit.own_part(), useful));
  };
  warn_of_small_limit("--max-body-bytes", Use::kBody, kUsefulBody);
  warn_of_small_limit("--max-queued-bytes", Use::kQueue, kUsefulBody);
  warn_of_small_limit("--max-result-bytes", Use::kResult, kUsefulResult);
  warn_of_small_limit("--max-response-bytes", Use::kResponse, Pieces::kMost);
  warn_of_small_limit("--max-download-bytes", Use::kDownload, Pieces::kMost);
  return out;
}

}  // namespace strata::server
