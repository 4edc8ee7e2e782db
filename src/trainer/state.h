// SPDX-License-Identifier: Apache-2.0
// Saving and resuming a TrainJob: OUT/trainer holds values, moments and counts; they are the truth,
// and the adapter or model next to it is an export of them. state.json also records every option
// that a step's bits depend on, so that a resume with another one is refused by name.
#pragma once
#include <string>

#include "trainer/job.h"

namespace strata::apps {

// The options that results depend on, by the marks of their table, as a JSON object; files and the
// model stand there as hashes of their content.
struct FilesOfRun {
  const std::vector<data::DataFile>& train;
  const std::vector<data::DataFile>& eval;  // read where --eval named them
};
std::string compute_train_fingerprint(const TrainSettings& settings, const ModelTexts& model,
                                      const FilesOfRun& files, const std::string& cpu_path);

bool has_train_state(const std::string& out);
// The fingerprint that the last save has, in the names that this version gives options.
std::string read_recorded_options(const std::string& out);
// Durable when it returns: first the state, then the export. Collective.
void save_run(TrainJob& job, const std::string& fingerprint);
// Loads the last save, which the first rank alone reads, into the jobs of all. Throws Error where
// the fingerprints differ, naming the options. Collective; the first rank's fingerprint counts.
void load_train_state(TrainJob& job, const std::string& fingerprint);

}  // namespace strata::apps
