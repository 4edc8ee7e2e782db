// SPDX-License-Identifier: Apache-2.0
// SQLite behind Sql: WAL, so that readers of a backup do not stop us; synchronous=FULL only for
// transactions that ask for it. The only place that includes sqlite3.h.
#include <fcntl.h>
#include <fmt/format.h>
#include <sqlite3.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>

#include "base/check.h"
#include "base/error.h"
#include "server/store/state/sql.h"
#include "server/store/state/stoppable_sqlite.h"
#include "server/store/state/store_lists.h"

namespace strata::server {
namespace {

constexpr int kStepsBetweenLooks = 1000;  // of SQLite's machine: less than a millisecond

struct ResetAtEnd {
  sqlite3_stmt* prepared;
  ~ResetAtEnd() {
    sqlite3_reset(prepared);
    sqlite3_clear_bindings(prepared);
  }
};

class Sqlite final : public Sql {
 public:
  Sqlite(const std::string& path, bool (*stops)()) : path_(path), stops_(stops) {
    open();
    sqlite3_extended_result_codes(db_, 1);
    sqlite3_busy_timeout(db_, 5000);
    if (stops_ != nullptr) sqlite3_progress_handler(db_, kStepsBetweenLooks, looks_at_stops, this);
    try {
      set_pragmas();
    } catch (...) {
      close();
      throw;
    }
  }
  ~Sqlite() override { close(); }
  Sqlite(const Sqlite&) = delete;
  Sqlite& operator=(const Sqlite&) = delete;

  SqlResult run(std::string_view statement, std::span<const SqlValue> parameters) override {
    sqlite3_stmt* prepared = prepare(statement);
    const ResetAtEnd reset{prepared};
    bind_all(prepared, parameters, statement);
    return step_to_end(prepared, statement);
  }

  void begin(Durability durability) override {
    const bool full = durability == Durability::kFull || durability == Durability::kUnhurried ||
                      (durability == Durability::kLater && !has_log_);
    run(full ? "PRAGMA synchronous=FULL" : "PRAGMA synchronous=NORMAL", {});
    run("BEGIN IMMEDIATE", {});
  }
  void commit() override { run("COMMIT", {}); }
  // After a commit its pages are in the log, or a checkpoint has synced them into the database.
  void sync() override {
    if (!has_log_) return;
    const std::string path = path_ + "-wal";
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) return;
    const bool done = fd >= 0 && ::fsync(fd) == 0;
    const int fault = errno;
    if (fd >= 0) ::close(fd);
    if (!done) throw StoreError(fmt::format("{}: fsync: {}", path, std::strerror(fault)));
  }
  void rollback() noexcept override {
    if (sqlite3_get_autocommit(db_) == 0) sqlite3_exec(db_, "ROLLBACK", nullptr, nullptr, nullptr);
  }

 private:
  static int looks_at_stops(void* self) { return static_cast<Sqlite*>(self)->stops_() ? 1 : 0; }

  void open() {
    const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
    if (sqlite3_open_v2(path_.c_str(), &db_, flags, nullptr) == SQLITE_OK) return;
    const std::string message = db_ == nullptr ? "out of memory" : sqlite3_errmsg(db_);
    sqlite3_close(db_);
    throw StoreError(fmt::format("{}: {}", path_, message));
  }

  void set_pragmas() {
    const SqlResult mode = run("PRAGMA journal_mode=WAL", {});
    has_log_ = mode.rows.at(0).at(0) == SqlValue(std::string("wal"));
    for (const char* pragma :
         {"PRAGMA foreign_keys=ON", "PRAGMA trusted_schema=OFF", "PRAGMA synchronous=NORMAL"}) {
      run(pragma, {});
    }
  }

  void close() {
    for (auto& [text, statement] : statements_) sqlite3_finalize(statement);
    statements_.clear();
    sqlite3_close(db_);
    db_ = nullptr;
  }

  [[noreturn]] void fail(std::string_view statement) {
    const int code = sqlite3_extended_errcode(db_);
    if (code == SQLITE_CONSTRAINT_UNIQUE || code == SQLITE_CONSTRAINT_PRIMARYKEY)
      throw NotUnique(not_unique_text(statement));
    throw StoreError(
        fmt::format("{}: {}: {}", path_, statement_name(statement), sqlite3_errmsg(db_)));
  }

  sqlite3_stmt* prepare(std::string_view statement) {
    const auto known = statements_.find(statement);
    if (known != statements_.end()) return known->second;
    sqlite3_stmt* prepared = nullptr;
    const int code = sqlite3_prepare_v3(db_, statement.data(), static_cast<int>(statement.size()),
                                        SQLITE_PREPARE_PERSISTENT, &prepared, nullptr);
    if (code != SQLITE_OK) fail(statement);
    statements_.emplace(std::string(statement), prepared);
    return prepared;
  }

  void bind_all(sqlite3_stmt* prepared, std::span<const SqlValue> parameters,
                std::string_view statement) {
    CHECK(static_cast<size_t>(sqlite3_bind_parameter_count(prepared)) == parameters.size(),
          statement, parameters.size());
    for (size_t i = 0; i < parameters.size(); ++i) {
      bind(prepared, static_cast<int>(i) + 1, parameters[i], statement);
    }
  }

  void bind(sqlite3_stmt* prepared, int index, const SqlValue& value, std::string_view statement) {
    // The values outlive the step, so nothing is copied.
    int code = SQLITE_OK;
    if (const auto* number = std::get_if<int64_t>(&value)) {
      code = sqlite3_bind_int64(prepared, index, *number);
    } else if (const auto* real = std::get_if<double>(&value)) {
      code = sqlite3_bind_double(prepared, index, *real);
    } else if (const auto* text = std::get_if<std::string>(&value)) {
      code = sqlite3_bind_text64(prepared, index, text->data(), text->size(), SQLITE_STATIC,
                                 SQLITE_UTF8);
    } else if (const auto* blob = std::get_if<Blob>(&value)) {
      code = sqlite3_bind_blob64(prepared, index, blob->bytes.data(), blob->bytes.size(),
                                 SQLITE_STATIC);
    } else {
      code = sqlite3_bind_null(prepared, index);
    }
    if (code != SQLITE_OK) fail(statement);
  }

  SqlResult step_to_end(sqlite3_stmt* prepared, std::string_view statement) {
    SqlResult result;
    const int columns = sqlite3_column_count(prepared);
    for (;;) {
      const int code = sqlite3_step(prepared);
      if (code == SQLITE_DONE) break;
      if (code != SQLITE_ROW) fail(statement);
      SqlRow row;
      for (int column = 0; column < columns; ++column) row.push_back(cell(prepared, column));
      result.rows.push_back(std::move(row));
    }
    result.changed = columns > 0 ? 0 : sqlite3_changes64(db_);
    return result;
  }

  static SqlValue cell(sqlite3_stmt* row, int column) {
    const auto bytes = [&](const void* data) {
      const auto size = static_cast<size_t>(sqlite3_column_bytes(row, column));
      return std::string(static_cast<const char*>(data), data == nullptr ? 0 : size);
    };
    switch (sqlite3_column_type(row, column)) {
      case SQLITE_INTEGER:
        return static_cast<int64_t>(sqlite3_column_int64(row, column));
      case SQLITE_FLOAT:
        return sqlite3_column_double(row, column);
      case SQLITE_TEXT:
        return bytes(sqlite3_column_text(row, column));
      case SQLITE_BLOB:
        return Blob{bytes(sqlite3_column_blob(row, column))};
      default:
        return std::monostate{};
    }
  }

  std::string path_;
  bool (*stops_)();  // null: nothing stops a statement
  sqlite3* db_ = nullptr;
  bool has_log_ = false;  // not every file system can have one
  std::map<std::string, sqlite3_stmt*, std::less<>> statements_;
};

}  // namespace

std::unique_ptr<Sql> open_sqlite(const std::string& path) {
  return std::make_unique<Sqlite>(path, nullptr);
}

std::unique_ptr<Sql> open_stoppable_sqlite(const std::string& path, bool (*stops)()) {
  return std::make_unique<Sqlite>(path, stops);
}

std::unique_ptr<Sql> open_sqlite_reader(const std::string& path) {
  auto reader = std::make_unique<Sqlite>(path, nullptr);
  reader->run("PRAGMA query_only=ON", {});
  return reader;
}

}  // namespace strata::server
