// SPDX-License-Identifier: Apache-2.0
#include "apps/backup.h"

#include <fmt/format.h>

#include <exception>
#include <functional>

#include "base/error.h"
#include "base/say.h"
#include "base/stop.h"
#include "report/format.h"
#include "server/store/checkpoints/backup.h"
#include "server/store/checkpoints/check.h"

namespace strata::apps {
namespace {

constexpr int kDamaged = 2;

// Ends with the code of a signal that stopped it: what was being made is removed by then.
int run_stoppable(const char* notice, const std::function<int()>& body) {
  ignore_closed_pipes();
  const StopSignals signals(notice, StopSignals::First::kNoted, StopSignals::Work::kToLose);
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

std::string counts_text(const std::string& path, const server::BackupCounts& counts) {
  return fmt::format("{}: {} checkpoints, {}", path, counts.checkpoints,
                     report::format_bytes(counts.bytes));
}

// Checks a backup and prints what was found; gives the exit code.
int report_on_backup(const CheckOptions& options) {
  const std::string key = read_key(options.archive_key);
  try {
    const server::BackupCounts counts = server::check_backup(options.in, key);
    print_result(fmt::format("{}; {}\n", counts_text(options.in, counts),
                             options.archive_key.empty()
                                 ? "whole (who wrote it was not checked: --archive-key)"
                                 : "whole, and of who has the key"));
    return 0;
  } catch (const Error& error) {
    if (error.code != ErrorCode::kInvalidArgument) throw;
    print_result(fmt::format("damage: {}\n", error.what()));
    return kDamaged;
  }
}

}  // namespace

int run_backup(const BackupOptions& options) {
  return run_stoppable(kNothingIsWritten, [&] {
    const server::BackupCounts counts =
        server::back_up(options.data, options.out, read_key(options.archive_key));
    print_result(fmt::format("{}\n", counts_text(options.out, counts)));
    return 0;
  });
}

int run_restore(const RestoreOptions& options) {
  return run_stoppable(kNothingIsWritten, [&] {
    const server::BackupCounts counts =
        server::restore(options.in, options.data, read_key(options.archive_key));
    print_result(fmt::format("{}\n", counts_text(options.data, counts)));
    return 0;
  });
}

namespace {

[[noreturn]] void refuse_key_of_data_directory() {
  throw Error(ErrorCode::kInvalidArgument,
              "--archive-key: a data directory has no key; it is of files of strata backup (--in)");
}

void print_check_report(const std::string& data, const server::CheckReport& report) {
  for (const std::string& note : report.notes) print_result(fmt::format("note: {}\n", note));
  for (const std::string& damage : report.damages)
    print_result(fmt::format("damage: {}\n", damage));
  print_result(
      fmt::format("{}; {} damages\n",
                  counts_text(data, {.checkpoints = report.checkpoints, .bytes = report.bytes}),
                  report.damages.size()));
  if (report.unhashed > 0)
    print_result(
        fmt::format("{} checkpoints are older than records of bytes: only their form was checked\n",
                    report.unhashed));
}

// Checks a data directory and prints what was found; gives the exit code.
int report_on_data(const CheckOptions& options) {
  if (!options.archive_key.empty()) refuse_key_of_data_directory();
  const server::CheckReport report = server::check_data(options.data);
  print_check_report(options.data, report);
  return report.damages.empty() ? 0 : kDamaged;
}

int run_check_command(const CheckOptions& options) {
  if (options.data.empty() == options.in.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "want either --data with a data directory or --in with a file of strata backup");
  }
  return options.in.empty() ? report_on_data(options) : report_on_backup(options);
}

}  // namespace

int run_check(const CheckOptions& options) {
  return run_stoppable("strata: stopping", [&] { return run_check_command(options); });
}

}  // namespace strata::apps
