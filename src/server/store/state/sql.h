// SPDX-License-Identifier: Apache-2.0
// Sql: one connection to SQLite or PostgreSQL, the seam under StateStore. Statements are written
// once, with ? for parameters and types that both know: BIGINT, DOUBLE PRECISION, TEXT, BYTEA. Not
// for two threads at once: StateStore has the lock. Outside a transaction a statement may be done
// twice, where a connection is lost behind it: it is written so that it may. Every fault but
// NotUnique is a StoreError that names the statement's first words and what the database said.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/error.h"

namespace strata::server {

// What a database could not do, as it says it: with its address and user, for the log alone.
struct StoreError : Error {
  explicit StoreError(const std::string& message) : Error(ErrorCode::kIo, message) {}
};
// A row that was to be added has a key that another one has: nothing was changed.
struct NotUnique : Error {
  explicit NotUnique(const std::string& message) : Error(ErrorCode::kInvalidArgument, message) {}
};

struct Blob {
  std::string bytes;
  bool operator==(const Blob&) const = default;
};

// Null, a number, a text (UTF-8 without NUL) or bytes.
using SqlValue = std::variant<std::monostate, int64_t, double, std::string, Blob>;
using SqlRow = std::vector<SqlValue>;

struct SqlResult {
  std::vector<SqlRow> rows;
  int64_t changed = 0;  // rows inserted, updated or deleted

  // The rows as texts, or as pairs of a text and a number.
  [[nodiscard]] std::vector<std::string> texts() const {
    std::vector<std::string> out;
    for (const SqlRow& row : rows) out.push_back(std::get<std::string>(row.at(0)));
    return out;
  }
  [[nodiscard]] std::map<std::string, int64_t> counts() const {
    std::map<std::string, int64_t> out;
    for (const SqlRow& row : rows)
      out[std::get<std::string>(row.at(0))] = std::get<int64_t>(row.at(1));
    return out;
  }
};

enum class Durability {
  kRelaxed,    // survives the end of the process
  kFull,       // survives the end of power: synced before commit returns
  kLater,      // survives the end of power when sync() has returned
  kUnhurried,  // kFull, of statements that may take as long as they need
};

class Sql {  // virtual: the fourth seam, since no build can know which database it will meet
 public:
  virtual ~Sql() = default;
  virtual SqlResult run(std::string_view statement, std::span<const SqlValue> parameters) = 0;
  virtual void begin(Durability durability) = 0;
  virtual void commit() = 0;
  // What was committed with kLater. Any thread, along with the other calls: whoever holds the
  // store's lock must not wait for a disk.
  virtual void sync() = 0;
  virtual void rollback() noexcept = 0;  // also after a failed commit; harmless when there is none

  // A database elsewhere may hang, and a file does not: the rest is about the former alone.
  [[nodiscard]] virtual bool may_hang() const { return false; }
  // Any thread: it was lost, and who has no deadline looks for it with the next statement.
  [[nodiscard]] virtual bool is_away() const { return false; }
  // What the calls so far should have taken in all, by the way there and back: that is no wait.
  [[nodiscard]] virtual double usual_seconds() const { return 0; }
  // When what follows must have ended, now_seconds(); a call that has not is an Error. With one,
  // nothing looks for a database that is away.
  static constexpr double kNoDeadline = std::numeric_limits<double>::infinity();
  virtual void set_deadline(double /*when*/) {}
  // Any thread, of a server that stops: from now on a statement has two seconds at most, one that
  // is under way too, and a database that was lost is not looked for.
  virtual void hurry() {}
};

std::unique_ptr<Sql> open_sqlite(const std::string& path);
// Takes a lock in the database, so that a second server on it is refused.
std::unique_ptr<Sql> open_postgres(const std::string& url);

// A transaction that rolls back unless commit() was called.
class Transaction {
 public:
  explicit Transaction(Sql& sql, Durability durability = Durability::kRelaxed) : sql_(&sql) {
    sql_->begin(durability);
  }
  ~Transaction() {
    if (sql_ != nullptr) sql_->rollback();
  }
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;
  void commit() {
    sql_->commit();
    sql_ = nullptr;
  }

 private:
  Sql* sql_;
};

// The first words of a statement, for messages: no values stand in it.
inline std::string statement_name(std::string_view statement) {
  return std::string(statement.substr(0, std::min<size_t>(statement.find_first_of("(=?"), 40)));
}
inline std::string not_unique_text(std::string_view statement) {  // of NotUnique
  return "state store: " + statement_name(statement) + ": there is one of this name already";
}

}  // namespace strata::server
