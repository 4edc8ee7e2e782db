// SPDX-License-Identifier: Apache-2.0
#include "apps/backup.h"

#include <fmt/format.h>

#include "report/format.h"
#include "server/checkpoints/backup.h"
#include "server/checkpoints/check.h"

namespace strata::apps {
namespace {

constexpr int kDamaged = 2;

}  // namespace

int run_backup(const BackupOptions& options) {
  const server::BackupCounts counts = server::back_up(options.data, options.out);
  fmt::print("{}: {} checkpoints, {}\n", options.out, counts.checkpoints,
             report::format_bytes(counts.bytes));
  return 0;
}

int run_restore(const RestoreOptions& options) {
  const server::BackupCounts counts = server::restore(options.in, options.data);
  fmt::print("{}: {} checkpoints, {}\n", options.data, counts.checkpoints,
             report::format_bytes(counts.bytes));
  return 0;
}

int run_check(const CheckOptions& options) {
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

}  // namespace strata::apps
