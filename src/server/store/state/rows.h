// SPDX-License-Identifier: Apache-2.0
// Between SqlRow and the typed rows; for the .cc files of the store.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "server/store/state/sql.h"
#include "server/store/state/store.h"

namespace strata::server::rows {

constexpr int64_t kAtOnce = 500;  // changed under the store's lock

inline SqlValue nullable(const std::optional<std::string>& value) {
  return value.has_value() ? SqlValue(*value) : SqlValue();
}
inline SqlValue nullable(const std::optional<double>& value) {
  return value.has_value() ? SqlValue(*value) : SqlValue();
}
inline SqlValue nullable(const std::optional<int64_t>& value) {
  return value.has_value() ? SqlValue(*value) : SqlValue();
}

// A column for Reader::flag(): whether that select finds anything.
inline std::string exists(std::string_view select) {
  return "CAST(CASE WHEN EXISTS (" + std::string(select) + ") THEN 1 ELSE 0 END AS BIGINT)";
}

// Rows as they are selected by these columns, and by further ones.
constexpr const char* kRunColumns =
    "id, tenant, session_id, model_seq, created_at, last_request_at, base_model, lora, "
    "user_metadata, project_id, state, ended_at";
RunRow read_run(const SqlRow& row);
constexpr const char* kCheckpointColumns =
    "id, run_id, tenant, kind, name, created_at, size_bytes, expires_at, is_public, user_metadata, "
    "base_model, lora, deleted_at";
CheckpointRow read_checkpoint(const SqlRow& row);

// The condition of a checkpoint that is alive at a time.
constexpr const char* kAlive = "deleted_at IS NULL AND (expires_at IS NULL OR expires_at > ?)";
// The newest of a run and a kind that is alive, by ids alone: texts would be sorted as well.
std::string last_checkpoint_sql();

// Reads a row's values in order.
class Reader {
 public:
  explicit Reader(const SqlRow& row) : row_(row) {}
  std::string text() { return std::get<std::string>(row_[next_++]); }
  int64_t integer() { return std::get<int64_t>(row_[next_++]); }
  double real() {
    const SqlValue& value = row_[next_++];
    const auto* whole = std::get_if<int64_t>(&value);
    return whole != nullptr ? static_cast<double>(*whole) : std::get<double>(value);
  }
  bool flag() { return integer() != 0; }
  void skip() { ++next_; }
  std::optional<std::string> maybe_text() { return maybe(&Reader::text); }
  std::optional<double> maybe_real() { return maybe(&Reader::real); }
  std::optional<int64_t> maybe_integer() { return maybe(&Reader::integer); }

 private:
  template <typename Value>
  std::optional<Value> maybe(Value (Reader::*read)()) {
    if (row_[next_].index() != 0) return (this->*read)();
    ++next_;
    return std::nullopt;
  }
  const SqlRow& row_;
  size_t next_ = 0;
};

// The number of a result that has nothing else.
inline int64_t only_number(const SqlResult& result) { return std::get<int64_t>(result.rows[0][0]); }

template <typename Row>
std::vector<Row> read_all(const SqlResult& result, Row (*read)(const SqlRow&)) {
  std::vector<Row> out;
  for (const SqlRow& row : result.rows) out.push_back(read(row));
  return out;
}

template <typename Row>
std::optional<Row> read_first(const SqlResult& result, Row (*read)(const SqlRow&)) {
  if (result.rows.empty()) return std::nullopt;
  return read(result.rows[0]);
}

}  // namespace strata::server::rows
