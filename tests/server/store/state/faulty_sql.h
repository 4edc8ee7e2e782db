// SPDX-License-Identifier: Apache-2.0
// FaultySql: an Sql that fails on demand, as a full disk or a database that went away does.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "server/store/state/sql.h"

namespace strata::server {

// Shared with the test; one thread.
struct SqlFaults {
  bool away = false;          // everything fails
  bool lost = false;          // a database elsewhere: the first statement that works finds it
  std::string statement;      // what begins like this fails; "": nothing
  bool commit_lost = false;   // COMMIT is done, and its answer is lost
  bool answers_lost = false;  // of statements outside a transaction, which are then sent again
  std::function<void()> slow_sync;
  std::function<void()> before_begin;  // of the next transaction
  std::vector<std::string> ran;        // statements
};

class FaultySql final : public Sql {
 public:
  FaultySql(std::unique_ptr<Sql> sql, std::shared_ptr<SqlFaults> faults)
      : sql_(std::move(sql)), faults_(std::move(faults)) {}

  SqlResult run(std::string_view statement, std::span<const SqlValue> parameters) override {
    check(statement);
    faults_->lost = false;
    faults_->ran.emplace_back(statement);
    if (faults_->answers_lost && !in_transaction_) sql_->run(statement, parameters);
    return sql_->run(statement, parameters);
  }
  void begin(Durability durability) override {
    check("BEGIN");
    if (const auto first = std::exchange(faults_->before_begin, nullptr)) first();
    sql_->begin(durability);
    in_transaction_ = true;
  }
  void commit() override {
    check("COMMIT");
    sql_->commit();
    in_transaction_ = false;
    if (std::exchange(faults_->commit_lost, false)) fail("COMMIT");
  }
  void sync() override {
    if (faults_->slow_sync) faults_->slow_sync();
    sql_->sync();
  }
  void rollback() noexcept override {
    sql_->rollback();
    in_transaction_ = false;
  }
  [[nodiscard]] bool is_away() const override { return faults_->lost; }

 private:
  [[noreturn]] static void fail(std::string_view statement) {
    throw StoreError(std::string(statement) + ": injected fault of the database");
  }
  void check(std::string_view statement) const {
    const bool named = !faults_->statement.empty() && statement.starts_with(faults_->statement);
    if (faults_->away || named) fail(statement);
  }

  std::unique_ptr<Sql> sql_;
  std::shared_ptr<SqlFaults> faults_;
  bool in_transaction_ = false;
};

}  // namespace strata::server
