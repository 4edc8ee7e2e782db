// SPDX-License-Identifier: Apache-2.0
#include "apps/backup.h"

#include <fmt/format.h>

#include <exception>
#include <functional>

#include "apps/options.h"
#include "base/error.h"
#include "base/stop.h"
#include "report/format.h"
#include "server/checkpoints/backup.h"
#include "server/checkpoints/check.h"

namespace strata::apps {
namespace {

constexpr int kDamaged = 2;

// Ends with the code of a signal that stopped it: what was being made is removed by then.
int run_stoppable(const char* notice, const std::function<int()>& body) {
  const StopSignals signals(notice, StopSignals::First::kNoted, StopSignals::Hangup::kNoted);
  try {
    return body();
  } catch (const std::exception&) {
    if (!StopSignals::asked()) throw;
    return StopSignals::exit_code();
  }
}

constexpr const char* kNothingIsWritten = "strata: stopping; nothing is written";

std::string read_key(const std::string& path) {
  return path.empty() ? "" : server::read_archive_key(path);
}

int check_archive(const CheckOptions& options) {
  try {
    const server::BackupCounts counts =
        server::check_backup(options.in, read_key(options.archive_key));
    fmt::print("{}: {} checkpoints, {}; {}\n", options.in, counts.checkpoints,
               report::format_bytes(counts.bytes),
               options.archive_key.empty() ? "whole (who wrote it was not checked: --archive-key)"
                                           : "whole, and of who has the key");
    return 0;
  } catch (const Error& error) {
    if (error.code != ErrorCode::kInvalidArgument) throw;
    fmt::print("damage: {}\n", error.what());
    return kDamaged;
  }
}

}  // namespace

int run_backup(const BackupOptions& options) {
  return run_stoppable(kNothingIsWritten, [&] {
    const server::BackupCounts counts =
        server::back_up(options.data, options.out, read_key(options.archive_key));
    fmt::print("{}: {} checkpoints, {}\n", options.out, counts.checkpoints,
               report::format_bytes(counts.bytes));
    return 0;
  });
}

int run_restore(const RestoreOptions& options) {
  return run_stoppable(kNothingIsWritten, [&] {
    const server::BackupCounts counts =
        server::restore(options.in, options.data, read_key(options.archive_key));
    fmt::print("{}: {} checkpoints, {}\n", options.data, counts.checkpoints,
               report::format_bytes(counts.bytes));
    return 0;
  });
}

namespace {

int check_data_directory(const CheckOptions& options) {
  if (!options.archive_key.empty()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "--archive-key: a data directory has no key; it is of files of strata backup (--in)");
  }
  const server::CheckReport report = server::check_data(options.data);
  for (const std::string& note : report.notes) fmt::print("note: {}\n", note);
  for (const std::string& damage : report.damages) fmt::print("damage: {}\n", damage);
  fmt::print("{}: {} checkpoints, {}; {} damages\n", options.data, report.checkpoints,
             report::format_bytes(report.bytes), report.damages.size());
  if (report.unhashed > 0)
    fmt::print("{} checkpoints are older than records of bytes: only their form was checked\n",
               report.unhashed);
  return report.damages.empty() ? 0 : kDamaged;
}

int check_data_or_archive(const CheckOptions& options) {
  if (options.data.empty() == options.in.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "want either --data with a data directory or --in with a file of strata backup");
  }
  return options.in.empty() ? check_data_directory(options) : check_archive(options);
}

}  // namespace

int run_check(const CheckOptions& options) {
  return run_stoppable("strata: stopping", [&] { return check_data_or_archive(options); });
}

OptionTable option_table_of(BackupOptions& o) {
  OptionTable t;
  t.text("data", o.data, "data directory of strata serve").required();
  t.text("out", o.out, "file to write; it holds the directory's secret").required();
  t.text("archive-key", o.archive_key, "FILE of 32 bytes or more: authenticate the backup with it");
  return t;
}

OptionTable option_table_of(RestoreOptions& o) {
  OptionTable t;
  t.text("in", o.in, "file of strata backup").required();
  t.text("data", o.data, "directory to make; not there, or empty").required();
  t.text("archive-key", o.archive_key, "FILE: refuse a backup that was not made with this key");
  return t;
}

OptionTable option_table_of(CheckOptions& o) {
  OptionTable t;
  t.text("data", o.data, "data directory of strata serve");
  t.text("in", o.in, "file of strata backup, instead of --data");
  t.text("archive-key", o.archive_key, "FILE: the key of that backup");
  return t;
}

}  // namespace strata::apps
