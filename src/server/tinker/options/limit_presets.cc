// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/options/limit_presets.h"

namespace strata::server {
namespace {

struct Row {
  const char* name;
  const char* small;  // a machine of one's own: some clients, a few GiB
  const char* large;  // hundreds of tenants
};

constexpr Row kRows[] = {
    {"max-adapters", "8", "512"},
    {"max-parked", "500", "50000"},
    {"max-downloads-per-tenant", "8", "256"},
    {"max-queued-samples", "512", "32768"},
    {"max-queued-operations", "2048", "65536"},
    {"max-sessions-per-tenant", "256", "16384"},
    {"max-samplers-per-session", "4096", "262144"},
    {"max-samplers-per-tenant", "16384", "1048576"},
    {"max-ephemeral", "32", "1024"},
    {"max-history", "1000", "100000"},
    {"max-stability-bytes", "64MiB", "4GiB"},
    {"max-archive-bytes", "2GiB", "128GiB"},
};

}  // namespace

OptionSource limits_source(const std::string& preset) {
  OptionSource source{"--limits " + preset, {}};
  if (preset == "default") return source;
  for (const Row& row : kRows)
    source.values[row.name] = {preset == "small" ? row.small : row.large};
  return source;
}

}  // namespace strata::server
