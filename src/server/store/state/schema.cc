// SPDX-License-Identifier: Apache-2.0
#include "server/store/state/schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <span>

#include "base/error.h"
#include "base/log.h"

namespace strata::server {
namespace {

// Times are seconds since 1970, UTC. `number` rises with creation and orders equal times. JSON is
// kept as text: the store never looks inside. Whole versions, never edited after a release.
constexpr const char* kVersion1[] = {
    "CREATE TABLE tenants (name TEXT PRIMARY KEY, number BIGINT NOT NULL UNIQUE, "
    "created_at DOUBLE PRECISION NOT NULL)",

    "CREATE TABLE sessions (id TEXT PRIMARY KEY, tenant TEXT NOT NULL, number BIGINT NOT NULL, "
    "created_at DOUBLE PRECISION NOT NULL, sdk_version TEXT NOT NULL, tags TEXT NOT NULL, "
    "user_metadata TEXT, display_name TEXT, project_id TEXT NOT NULL, state TEXT NOT NULL, "
    "ended_at DOUBLE PRECISION, end_reason TEXT, end_detail TEXT)",
    "CREATE INDEX sessions_by_tenant ON sessions (tenant, number)",

    "CREATE TABLE samplers (id TEXT PRIMARY KEY, session_id TEXT NOT NULL, "
    "sampling_seq BIGINT NOT NULL, tenant TEXT NOT NULL, number BIGINT NOT NULL, "
    "created_at DOUBLE PRECISION NOT NULL, base_model TEXT NOT NULL, model_path TEXT, "
    "checkpoint_id TEXT, is_ephemeral BIGINT NOT NULL, boot BIGINT NOT NULL, "
    "UNIQUE (session_id, sampling_seq))",
    "CREATE INDEX samplers_by_checkpoint ON samplers (checkpoint_id)",

    "CREATE TABLE runs (id TEXT PRIMARY KEY, tenant TEXT NOT NULL, session_id TEXT, "
    "model_seq BIGINT, number BIGINT NOT NULL, created_at DOUBLE PRECISION NOT NULL, "
    "last_request_at DOUBLE PRECISION NOT NULL, base_model TEXT NOT NULL, lora TEXT NOT NULL, "
    "user_metadata TEXT, project_id TEXT NOT NULL, state TEXT NOT NULL, "
    "ended_at DOUBLE PRECISION, UNIQUE (session_id, model_seq))",
    "CREATE INDEX runs_by_tenant ON runs (tenant, number)",

    "CREATE TABLE checkpoints (id TEXT PRIMARY KEY, run_id TEXT NOT NULL, tenant TEXT NOT NULL, "
    "kind TEXT NOT NULL, name TEXT NOT NULL, number BIGINT NOT NULL, "
    "created_at DOUBLE PRECISION NOT NULL, size_bytes BIGINT NOT NULL, "
    "expires_at DOUBLE PRECISION, is_public BIGINT NOT NULL, user_metadata TEXT, "
    "base_model TEXT NOT NULL, lora TEXT NOT NULL, deleted_at DOUBLE PRECISION, "
    "files_gone BIGINT NOT NULL)",
    "CREATE UNIQUE INDEX checkpoints_by_name ON checkpoints (run_id, kind, name) "
    "WHERE deleted_at IS NULL",
    "CREATE INDEX checkpoints_by_tenant ON checkpoints (tenant, number)",

    "CREATE TABLE idempotency (tenant TEXT NOT NULL, scope TEXT NOT NULL, name TEXT NOT NULL, "
    "value TEXT NOT NULL, created_at DOUBLE PRECISION NOT NULL, "
    "PRIMARY KEY (tenant, scope, name))",

    "CREATE TABLE stability (session_id TEXT NOT NULL, sequence_id TEXT NOT NULL, "
    "last_used DOUBLE PRECISION NOT NULL, record BYTEA NOT NULL, "
    "PRIMARY KEY (session_id, sequence_id))",
    "CREATE INDEX stability_by_use ON stability (last_used)",
};

constexpr const char* kVersion2[] = {
    "ALTER TABLE idempotency ADD COLUMN fingerprint BIGINT",  // of the request; null: unknown
    "CREATE INDEX idempotency_by_time ON idempotency (created_at)",
    "CREATE INDEX checkpoints_by_expiry ON checkpoints (expires_at) WHERE deleted_at IS NULL",
    "CREATE INDEX checkpoints_by_end ON checkpoints (files_gone, deleted_at)",
    "CREATE INDEX checkpoints_by_run ON checkpoints (run_id)",
    "CREATE INDEX sessions_by_state ON sessions (state, ended_at)",
    "CREATE INDEX runs_by_state ON runs (state, ended_at)",
    // A request's prompt and what its records take in all; rows of stability name it. Rows without
    // one are of version 1: the prompt stands in each, all in hexadecimal.
    "CREATE TABLE stability_prompts (session_id TEXT NOT NULL, id TEXT NOT NULL, "
    "tenant TEXT NOT NULL, last_used DOUBLE PRECISION NOT NULL, bytes BIGINT NOT NULL, "
    "prompt BYTEA NOT NULL, PRIMARY KEY (session_id, id))",
    "CREATE INDEX stability_prompts_by_use ON stability_prompts (tenant, last_used)",
    "ALTER TABLE stability ADD COLUMN prompt_id TEXT",
    "CREATE INDEX stability_by_prompt ON stability (session_id, prompt_id)",
};

constexpr const char* kVersion3[] = {
    // What each key has used, ever; disk bytes are in `checkpoints`.
    "CREATE TABLE usage_by_key (tenant TEXT NOT NULL, key_id TEXT NOT NULL, "
    "requests BIGINT NOT NULL, trained_tokens BIGINT NOT NULL, sampled_tokens BIGINT NOT NULL, "
    "PRIMARY KEY (tenant, key_id))",
};

constexpr const char* kVersion4[] = {
    "ALTER TABLE usage_by_key ADD COLUMN prompt_tokens BIGINT NOT NULL DEFAULT 0",
};

constexpr const char* kVersion5[] = {
    // What a tenant has that ended, without a look at the rows: their texts stand before the state.
    "CREATE INDEX sessions_by_end ON sessions (tenant, state, number)",
    "CREATE INDEX runs_by_end ON runs (tenant, state, number)",
};

constexpr const char* kVersion6[] = {
    "CREATE INDEX stability_prompts_by_time ON stability_prompts (last_used)",
    "DROP INDEX stability_prompts_by_use",  // this one adds up what a tenant's take
    "CREATE INDEX stability_prompts_of_tenant ON stability_prompts (tenant, last_used, bytes)",
    // The newest of a kind without a look at the others' texts.
    ("CREATE INDEX checkpoints_by_kind ON checkpoints (run_id, kind, number) "
     "WHERE deleted_at IS NULL"),
    // Some samplers of a checkpoint at a time.
    "DROP INDEX samplers_by_checkpoint",
    "CREATE INDEX samplers_of_checkpoint ON samplers (checkpoint_id, number)",
};

}  // namespace

int64_t read_schema_version(Sql& sql) {
  sql.run("CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value BIGINT NOT NULL)", {});
  const SqlResult found = sql.run("SELECT value FROM meta WHERE name = 'schema_version'", {});
  return found.rows.empty() ? 0 : std::get<int64_t>(found.rows[0][0]);
}

namespace {

// What `version` of a new database adds.
void apply_version(Sql& sql, int64_t version) {
  constexpr std::span<const char* const> kVersions[] = {kVersion1, kVersion2, kVersion3,
                                                        kVersion4, kVersion5, kVersion6};
  static_assert(std::size(kVersions) == kSchemaVersion);
  for (const char* statement : kVersions[version - 1]) sql.run(statement, {});
  if (version > 1) return;
  sql.run("INSERT INTO meta (name, value) VALUES ('boot', 0)", {});
  sql.run("INSERT INTO meta (name, value) VALUES ('schema_version', 0)", {});
}

// Names of what there is, with the statements that made it; null: the database's own indexes.
std::map<std::string, std::string> read_schema(Sql& sql) {
  std::map<std::string, std::string> out;
  for (const SqlRow& row :
       sql.run("SELECT type, name, tbl_name, sql FROM sqlite_master", {}).rows) {
    const auto text = [&](size_t i) {
      const auto* value = std::get_if<std::string>(&row[i]);
      return value == nullptr ? std::string() : *value;
    };
    // Two of one name are no server's.
    out[fmt::format("{} {} of {}", text(0), text(1), text(2))] += text(3);
  }
  return out;
}

void refuse_newer_version(int64_t version) {
  if (version <= kSchemaVersion) return;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("state store: schema version {}, this program knows {}; it was written "
                          "by a newer strata: use that one",
                          version, kSchemaVersion));
}

void log_migration(int64_t version) {
  log(LogLevel::kWarning, fmt::format("state store: from schema version {} to {}, which takes a "
                                      "while where it has much",
                                      version, kSchemaVersion));
}

}  // namespace

void migrate(Sql& sql) {
  Transaction transaction(sql, Durability::kUnhurried);
  const int64_t version = read_schema_version(sql);
  refuse_newer_version(version);
  if (version > 0 && version < kSchemaVersion) log_migration(version);
  for (int64_t next = std::max<int64_t>(version, 0) + 1; next <= kSchemaVersion; ++next) {
    apply_version(sql, next);
  }
  const SqlValue newest = kSchemaVersion;
  sql.run("UPDATE meta SET value = ? WHERE name = 'schema_version'", {&newest, 1});
  transaction.commit();
}

bool has_valid_meta_table(Sql& sqlite) {
  const std::unique_ptr<Sql> fresh = open_sqlite(":memory:");
  read_schema_version(*fresh);
  const auto got = read_schema(sqlite);
  const auto is_ours = [&](const auto& item) {
    const auto found = got.find(item.first);
    return found != got.end() && found->second == item.second;
  };
  const auto wanted = read_schema(*fresh);
  // Names mean the same in capitals.
  const SqlResult same =
      sqlite.run("SELECT COUNT(*) FROM sqlite_master WHERE lower(name) = 'meta'", {});
  return std::get<int64_t>(same.rows[0][0]) == 1 &&
         std::all_of(wanted.begin(), wanted.end(), is_ours);
}

std::string find_schema_difference(Sql& sqlite, int64_t version) {
  const std::unique_ptr<Sql> fresh = open_sqlite(":memory:");
  read_schema_version(*fresh);
  for (int64_t next = 1; next <= version; ++next) apply_version(*fresh, next);
  const auto wanted = read_schema(*fresh);
  const auto got = read_schema(sqlite);
  for (const auto& [what, statement] : got) {
    const auto known = wanted.find(what);
    if (known == wanted.end()) return fmt::format("has {}, which no server makes", what);
    if (known->second != statement) return fmt::format("{} is not as a server makes it", what);
  }
  for (const auto& [what, statement] : wanted) {
    if (!got.contains(what)) return fmt::format("lacks {}", what);
  }
  return "";
}

}  // namespace strata::server
