// SPDX-License-Identifier: Apache-2.0
#include "apps/export/merge.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/export/export_model.h"
#include "base/say.h"
#include "base/stop.h"
#include "model/export/write_checkpoint.h"

namespace strata::apps {

namespace {

void print_merged(const MergeOptions& options, const ExportModel& model,
                  const std::vector<model::TensorError>& errors) {
  const auto changed = std::count_if(errors.begin(), errors.end(), [&](const auto& error) {
    return model.merged()->is_changed(error.name);
  });
  print_result(fmt::format("{}: {} of {} tensors changed by {} adapter(s){}\n", options.out,
                           changed, errors.size(), options.parts.size(),
                           model.merged()->unties() ? "; embedding and head are apart now" : ""));
}

}  // namespace

int run_merge(const MergeOptions& options) {
  ignore_closed_pipes();
  const StopSignals signals("strata: stopping; nothing is written", StopSignals::First::kNoted,
                            StopSignals::Work::kToLose);
  check_no_overwrite("out", options.out);
  if (!options.report.empty()) make_parent_folder("report", options.report);
  const ModelTexts base = open_texts(options.model);
  ExportModel model(base, options.parts, options.threads,
                    find_adapter_of_texts(base, options.parts));
  AtomicDir dir(options.out);
  const auto errors = model::write_checkpoint(model.backend(), model.source(), model.names(),
                                              dir.file("."), model::WriteOptions());
  if (!errors) return StopSignals::exit_code();
  model.write_small_files(dir.file("."), {});
  dir.commit();
  print_merged(options, model, *errors);
  report_rounding(*errors, options.report, options.verbose);
  return 0;
}

}  // namespace strata::apps
