// SPDX-License-Identifier: Apache-2.0
// What keys have used, in the state store.
#include "server/store/state/rows.h"
#include "server/store/state/store.h"

namespace strata::server {
namespace {

UsageRow read_usage(const SqlRow& row) {
  rows::Reader in(row);
  UsageRow out;
  out.tenant = in.text();
  out.key_id = in.text();
  for (int64_t& count : out.counts) count = in.integer();
  return out;
}

}  // namespace

std::vector<UsageRow> StateStore::read_usage_rows() {
  const StoreLock lock(mutex_);
  return rows::read_all(
      run("SELECT tenant, key_id, requests, trained_tokens, sampled_tokens, prompt_tokens "
          "FROM usage_by_key ORDER BY tenant, key_id",
          {}),
      read_usage);
}

void StateStore::upsert_usage(const std::vector<UsageRow>& rows) {
  run_in_batches(
      "INSERT INTO usage_by_key (tenant, key_id, requests, trained_tokens, sampled_tokens, "
      "prompt_tokens) VALUES {} ON CONFLICT (tenant, key_id) DO UPDATE SET "
      "requests = excluded.requests, trained_tokens = excluded.trained_tokens, "
      "sampled_tokens = excluded.sampled_tokens, prompt_tokens = excluded.prompt_tokens",
      "(?, ?, ?, ?, ?, ?)", rows.size(), [&](size_t i) -> std::vector<SqlValue> {
        const UsageRow& row = rows[i];
        return {row.tenant, row.key_id, row.counts[0], row.counts[1], row.counts[2], row.counts[3]};
      });
}

}  // namespace strata::server
