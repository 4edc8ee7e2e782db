// SPDX-License-Identifier: Apache-2.0
#include "server/store/checkpoints/check.h"

#include <fmt/format.h>

#include <bit>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <tuple>

#include "base/ascii.h"
#include "base/error.h"
#include "base/files.h"
#include "base/stop.h"
#include "checkpoint/safetensors.h"
#include "server/store/checkpoints/data_dir.h"
#include "server/store/checkpoints/record.h"
#include "server/store/checkpoints/row_rules.h"
#include "server/store/state/schema.h"
#include "server/store/state/stoppable_sqlite.h"
#include "server/store/state/store.h"
#include "text/json_reader.h"

namespace strata::server {
namespace {

namespace fs = std::filesystem;

constexpr size_t kSecretBytes = 32;
constexpr size_t kMostDamages = 1000;                 // that are told
constexpr int64_t kMostRows = int64_t{1} << 52;       // also of bytes and tokens
constexpr int64_t kMostOfArchive = int64_t{1} << 50;  // of what a server counts on from
constexpr int64_t kMostText = 64 << 10;               // metadata and tags have 16 KiB
constexpr int64_t kMostRecord = 64 << 20;             // of a sequence, or a prompt
constexpr int64_t kMostRank = 1 << 20;
constexpr int64_t kLastSecond = 253'402'300'799;  // of the year 9999

struct Row {
  RowNames names;
  int64_t size_bytes = 0;
};

// id, tenant, run_id, kind, name, size_bytes.
Row row_of(const SqlRow& values) {
  const auto text = [&](size_t i) { return std::get<std::string>(values[i]); };
  return {{text(0), text(1), text(2), text(3), text(4)}, std::get<int64_t>(values[5])};
}

class Check {
 public:
  Check(const std::string& data, Counters counters)
      : data_(data), most_counted_(counters == Counters::kOfArchive ? kMostOfArchive : kMostRows) {}

  CheckReport check_directory() {
    const std::string secret = read_secret();
    const std::string database = data_ + "/strata.db";
    if (!file_exists(database)) {
      // What PostgreSQL holds is its own to check.
      report_.notes.push_back(
          fmt::format("{}: not there; with --db the checkpoints' rows are not checked", database));
      return report_;
    }
    open_database(database, secret);
    if (report_.damages.empty()) check_checkpoints();
    return report_;
  }

  CheckReport check_database_alone(const std::string& database) {
    open_database(database, read_secret());
    return report_;
  }

 private:
  // A folder that is not mounted has as many as there are checkpoints.
  void report_damage(const std::string& what) {
    const size_t count = report_.damages.size();
    if (count < kMostDamages) report_.damages.push_back(what);
    if (count == kMostDamages)
      report_.damages.push_back(
          fmt::format("{}: more than {} damages; the rest is not told", data_, kMostDamages));
  }
  [[nodiscard]] bool is_full() const { return report_.damages.size() > kMostDamages; }
  void run_reporting_errors(const std::string& path, const std::function<void()>& body) {
    try {
      body();
    } catch (const std::exception& error) {
      check_stop_signal();
      const std::string text = error.what();
      report_damage(text.starts_with(path) ? text : fmt::format("{}: {}", path, text));
    }
  }

  void open_database(const std::string& database, const std::string& secret) {
    run_reporting_errors(database, [&] {
      sql_ = open_stoppable_sqlite(database, StopSignals::asked);
      check_database(secret);
    });
  }

  // The secret; what is wrong with it is reported as damage.
  std::string read_secret() {
    std::string secret;
    run_reporting_errors(data_ + "/secret", [&] { secret = read_file(data_ + "/secret", 4096); });
    if (report_.damages.empty() && secret.size() != kSecretBytes)
      report_damage(
          fmt::format("{}/secret: {} bytes, want {}", data_, secret.size(), kSecretBytes));
    return secret;
  }

  // No statement but of the schema itself runs in one that is not ours: views, constraints,
  // indexes and columns may be expressions that take all memory, or for ever.
  [[nodiscard]] std::string find_schema_fault() {
    const SqlResult encoding = sql_->run("PRAGMA encoding", {});
    if (encoding.rows.at(0).at(0) != SqlValue(std::string("UTF-8")))
      return "its encoding is not UTF-8, in which a server makes it";
    if (!has_valid_meta_table(*sql_)) return "its table meta is not as a server makes it";
    const int64_t version = meta("schema_version");
    if (version >= 1 && version <= kSchemaVersion) return find_schema_difference(*sql_, version);
    return fmt::format("schema version {}, this program knows 1 to {}", version, kSchemaVersion);
  }

  void check_integrity() {
    for (const SqlRow& row : sql_->run("PRAGMA integrity_check", {}).rows) {
      const std::string& said = std::get<std::string>(row[0]);
      if (said != "ok") report_damage(fmt::format("{}/strata.db: {}", data_, said));
    }
  }

  void check_database(const std::string& secret) {
    if (!report_.damages.empty()) return;
    const std::string fault = find_schema_fault();
    if (!fault.empty()) return report_damage(fmt::format("{}/strata.db: {}", data_, fault));
    check_integrity();
    if (!report_.damages.empty()) return;
    check_values();
    check_fingerprints(fingerprint_of_secret(secret));
  }

  // The database and the folder of checkpoints are of this data directory.
  void check_fingerprints(int64_t fingerprint) {
    if (meta("data_directory") != fingerprint)
      report_damage(fmt::format("{}/strata.db: belongs to another data directory than {}/secret",
                                data_, data_));
    const std::string mark = data_ + "/checkpoints/fingerprint";
    run_reporting_errors(mark, [&] {
      if (read_file(mark, 64) != fmt::format("{}\n", fingerprint))
        report_damage(fmt::format("{}: of another data directory", mark));
    });
  }

  // Types and numbers that the server takes for granted.
  void check_values() {
    check_columns();
    if (!report_.damages.empty()) return;  // what is too large is not read
    check_boot_number();
    check_checkpoint_flags();
    check_texts();
  }

  void check_boot_number() {
    const int64_t boot = meta("boot");
    if (boot >= 0 && boot <= most_counted_) return;
    report_damage(
        fmt::format("{}/strata.db: boot number {}, want 0 to {}", data_, boot, most_counted_));
  }

  void check_columns() {
    for (const SqlRow& table : sql_->run("SELECT name FROM sqlite_master WHERE type = 'table' "
                                         "AND name NOT LIKE 'sqlite_%'",
                                         {})
                                   .rows) {
      const std::string& name = std::get<std::string>(table[0]);
      const SqlValue value = name;
      for (const SqlRow& column :
           sql_->run("SELECT name, type, \"notnull\" OR pk FROM pragma_table_info(?)", {&value, 1})
               .rows) {
        check_column(name, std::get<std::string>(column[0]), std::get<std::string>(column[1]),
                     std::get<int64_t>(column[2]) != 0);
      }
    }
  }

  // Every table is looked at: the store refuses such texts, and names make folders and addresses.
  void check_texts() {
    for (const SqlRow& row :
         sql_->run("SELECT tables.name, columns.name FROM sqlite_master AS tables JOIN "
                   "pragma_table_info(tables.name) AS columns WHERE tables.type = 'table' AND "
                   "tables.name NOT LIKE 'sqlite_%' AND columns.type = 'TEXT'",
                   {})
             .rows) {
      check_texts_of(std::get<std::string>(row[0]), std::get<std::string>(row[1]));
    }
  }

  void check_texts_of(const std::string& table, const std::string& column) {
    int64_t count = 0;
    std::string first;
    for_each_text(table, column, [&](const std::string& text) {
      check_syntax(table, column, text);
      if (fits_column(table, column, text)) return;
      if (++count == 1) first = percent_escaped(text.substr(0, 100));
    });
    check_stop_signal();
    if (count > 0)
      report_damage(
          fmt::format("{}/strata.db: {} rows of {} have a {} that no server writes, as '{}'", data_,
                      count, table, column, first));
  }

  void check_syntax(const std::string& table, const std::string& column, const std::string& text) {
    const std::string of_table = fmt::format("{}/strata.db: {}", data_, table);
    const std::string where = of_table + ": " + column;
    if (column == "user_metadata")
      run_reporting_errors(where,
                           [&] { check_json(text, where, text::JsonReader::Kind::kObject); });
    if (column == "tags")
      run_reporting_errors(where, [&] { check_json(text, where, text::JsonReader::Kind::kArray); });
    if (column == "lora") run_reporting_errors(of_table, [&] { check_lora(text); });
  }

  // Some at a time: a table is as large as the disk.
  void for_each_text(const std::string& table, const std::string& column,
                     const std::function<void(const std::string&)>& take) {
    const std::string statement = fmt::format(
        "SELECT rowid, {1} FROM {0} WHERE rowid >= ? AND {1} IS NOT NULL ORDER BY rowid LIMIT 256",
        table, column);
    SqlValue first = std::numeric_limits<int64_t>::min();  // any number may be a row's
    for (;;) {
      const SqlResult found = sql_->run(statement, {&first, 1});
      if (found.rows.empty()) return;
      for (const SqlRow& row : found.rows) take(std::get<std::string>(row[1]));
      const auto last = std::get<int64_t>(found.rows.back()[0]);
      if (last == std::numeric_limits<int64_t>::max()) return;
      first = last + 1;
    }
  }

  static void check_lora(const std::string& text) {
    const int64_t rank = parse_lora_config(text).rank;
    if (rank >= 1 && rank <= kMostRank && std::has_single_bit(static_cast<uint64_t>(rank))) return;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("lora: rank {}, want a power of two up to {}", rank, kMostRank));
  }

  // Answers carry it as it is.
  static void check_json(const std::string& text, const std::string& where,
                         text::JsonReader::Kind kind) {
    text::JsonReader json(text, where);
    if (json.peek_kind() != kind)
      json.fail(kind == text::JsonReader::Kind::kArray ? "is no array" : "is no object");
    json.skip();
    json.end();
  }

  // Files that are gone are of what was deleted.
  void check_checkpoint_flags() {
    const SqlResult wrong = sql_->run(
        "SELECT COUNT(*) FROM checkpoints WHERE is_public NOT IN (0, 1) OR files_gone NOT IN (0, "
        "1) OR (files_gone = 1 AND deleted_at IS NULL)",
        {});
    const int64_t count = std::get<int64_t>(wrong.rows[0][0]);
    if (count > 0)
      report_damage(fmt::format("{}/strata.db: {} rows of checkpoints are neither there nor gone",
                                data_, count));
  }

  void check_column(const std::string& table, const std::string& column, const std::string& type,
                    bool is_needed) {
    const SqlResult wrong = sql_->run(fmt::format("SELECT COUNT(*) FROM {} WHERE {}", table,
                                                  invalid_value_sql(column, type, is_needed)),
                                      {});
    const int64_t count = std::get<int64_t>(wrong.rows[0][0]);
    if (count > 0)
      report_damage(
          fmt::format("{}/strata.db: {} rows of {} have a {} that is no {} a server writes", data_,
                      count, table, column, type));
    if (is_summed(table, column)) check_column_total(table, column);
  }

  // In SQL, of a value that a server does not write.
  [[nodiscard]] std::string invalid_value_sql(const std::string& column, const std::string& type,
                                              bool is_needed) const {
    const char* types = type == "TEXT"     ? "'text'"
                        : type == "BIGINT" ? "'integer'"
                        : type == "BYTEA"  ? "'blob', 'text'"
                                           : "'real', 'integer'";
    std::string is_wrong =
        fmt::format("typeof({}) NOT IN ({}{})", column, types, is_needed ? "" : ", 'null'");
    const bool is_any = column == "fingerprint" || column == "value" || column.ends_with("_seq");
    const bool is_counter = column == "number" || column == "boot";
    if (type == "BIGINT" && !is_any) {
      is_wrong += fmt::format(" OR {} NOT BETWEEN 0 AND {}", column,
                              is_counter ? most_counted_ : kMostRows);
    }
    // SQL's length() of a text ends at its first NUL.
    if (type == "TEXT") {
      is_wrong +=
          fmt::format(" OR length(CAST({0} AS BLOB)) > {1} OR instr(CAST({0} AS BLOB), x'00') > 0",
                      column, kMostText);
    }
    if (type == "BYTEA")
      is_wrong += fmt::format(" OR length(CAST({} AS BLOB)) > {}", column, kMostRecord);
    if (type == "DOUBLE PRECISION")
      is_wrong += fmt::format(" OR {} NOT BETWEEN 0 AND {}", column, kLastSecond);
    return is_wrong;
  }

  static bool is_summed(const std::string& table, const std::string& column) {
    return (table == "usage_by_key" && column != "tenant" && column != "key_id") ||
           (table == "checkpoints" && column == "size_bytes") ||
           (table == "stability_prompts" && column == "bytes");
  }

  // Whole numbers that wrap, or that the database refuses to add up.
  void check_column_total(const std::string& table, const std::string& column) {
    const SqlResult sum =
        sql_->run(fmt::format("SELECT TOTAL(CAST({} AS REAL)) FROM {}", column, table), {});
    if (std::get<double>(sum.rows[0][0]) <= static_cast<double>(kMostRows)) return;
    report_damage(fmt::format("{}/strata.db: the {} of {} come to more than {}", data_, column,
                              table, kMostRows));
  }

  int64_t meta(const std::string& name) {
    const SqlValue value = name;
    const SqlResult found = sql_->run("SELECT value FROM meta WHERE name = ?", {&value, 1});
    return found.rows.empty() ? -1 : std::get<int64_t>(found.rows[0][0]);
  }

  void check_checkpoints() {
    std::set<std::string> known;
    for (const SqlRow& values :
         sql_->run("SELECT id, tenant, run_id, kind, name, size_bytes FROM checkpoints "
                   "WHERE files_gone = 0 ORDER BY number",
                   {})
             .rows) {
      const Row row = row_of(values);
      const std::string fault = find_name_fault(row.names);
      if (!fault.empty()) {
        report_damage(fmt::format("{}/strata.db: {}", data_, fault));
        continue;
      }
      const std::string dir = fmt::format("{}/checkpoints/{}", data_, folder_of_row(row.names));
      known.insert(dir);
      check_stop_signal();
      const size_t before = report_.damages.size();
      check_live_folder(dir, row);
      if (report_.damages.size() > before && is_full()) return;
    }
    note_unknown_folders(known);
  }

  // Takes back what it reported of one that was deleted while it was looked at.
  void check_live_folder(const std::string& dir, const Row& row) {
    const size_t before = report_.damages.size(), notes = report_.notes.size();
    const auto counts = std::tie(report_.checkpoints, report_.bytes, report_.unhashed);
    const std::tuple<int64_t, int64_t, int64_t> saved = counts;
    run_reporting_errors(dir, [&] { check_folder(dir, row); });
    if (report_.damages.size() == before || checkpoint_exists(*sql_, row.names.id)) return;
    report_.damages.resize(before);
    report_.notes.resize(notes);
    std::tie(report_.checkpoints, report_.bytes, report_.unhashed) = saved;
  }

  void check_folder(const std::string& dir, const Row& row) {
    const std::string path =
        fmt::format("tinker://{}/{}/{}", row.names.run_id, row.names.kind, row.names.name);
    if (!file_exists(dir + "/" + kMarkerName)) {
      return report_damage(
          fmt::format("{}: {} is not there or not whole: no {}", dir, path, kMarkerName));
    }
    const CheckpointRecord record = read_record(dir + "/" + kRecordName);
    if (record.path != path)
      report_damage(
          fmt::format("{}/{}: says '{}', the database '{}'", dir, kRecordName, record.path, path));
    ++report_.checkpoints;
    report_.unhashed += record.hashes.empty() ? 1 : 0;
    const int64_t bytes = verify_files(dir, record);
    // A record has 100 bytes at least, and a row's size is of its files with one.
    if (bytes >= row.size_bytes || bytes + (64 << 10) < row.size_bytes)
      report_damage(
          fmt::format("{}: its files have {} bytes, {} were saved", dir, bytes, row.size_bytes));
  }

  // Checks a checkpoint's files; gives their bytes without the record and the marker.
  int64_t verify_files(const std::string& dir, const CheckpointRecord& record) {
    int64_t bytes = 0;
    std::set<std::string> seen;
    for (const auto& entry : fs::directory_iterator(dir)) {
      const std::string name = entry.path().filename().string();
      const std::string file = entry.path().string();
      report_.bytes += static_cast<int64_t>(entry.file_size());
      seen.insert(name);
      if (name == kRecordName || name == kMarkerName) continue;
      bytes += static_cast<int64_t>(entry.file_size());
      run_reporting_errors(file, [&] { check_file(file, name, record); });
    }
    for (const auto& [name, hash] : record.hashes) {
      if (!seen.contains(name)) report_damage(fmt::format("{}/{}: is missing", dir, name));
    }
    return bytes;
  }

  static void check_file(const std::string& file, const std::string& name,
                         const CheckpointRecord& record) {
    const auto known = record.hashes.find(name);
    if (known != record.hashes.end()) {
      if (hash_file(file, check_stop_signal) == known->second) return;
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{}: its bytes are not those that were saved", file));
    }
    if (name.ends_with(".safetensors")) SafetensorsFile{file};
  }

  void note_unknown_folders(const std::set<std::string>& known) {
    std::error_code fault;
    const fs::recursive_directory_iterator end;
    for (fs::recursive_directory_iterator at(data_ + "/checkpoints", fault); !fault && at != end;
         at.increment(fault)) {
      if (at.depth() < 3) continue;  // <tenant>/<run>/<kind>/<id>
      at.disable_recursion_pending();
      if (!known.contains(at->path().string()))
        report_.notes.push_back(fmt::format(
            "{}: no row knows it; it was made or deleted just now, or the next start moves it to "
            "lost/",
            at->path().string()));
    }
  }

  std::string data_;
  int64_t most_counted_;
  std::unique_ptr<Sql> sql_;
  CheckReport report_;
};

}  // namespace

bool checkpoint_exists(Sql& sql, const std::string& id) {
  const SqlValue value = id;
  return !sql.run(
                 "SELECT id FROM checkpoints WHERE id = ? AND files_gone = 0 AND "
                 "deleted_at IS NULL",
                 {&value, 1})
              .rows.empty();
}

void check_stop_signal() {
  if (StopSignals::asked()) throw Error(ErrorCode::kIo, "stopped by a signal");
}

CheckReport check_data(const std::string& data, Counters counters) {
  const std::string path = without_trailing_slashes(data);
  if (!file_exists(path + "/secret") && !file_exists(path + "/strata.db")) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("--data: '{}' is no data directory: it has neither secret nor strata.db",
                    data));
  }
  return Check(path, counters).check_directory();
}

CheckReport check_snapshot(const std::string& data, const std::string& database) {
  return Check(data, Counters::kOfArchive).check_database_alone(database);
}

}  // namespace strata::server
