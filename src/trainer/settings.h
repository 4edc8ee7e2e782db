// SPDX-License-Identifier: Apache-2.0
// TrainSettings: the values of a run that its options leave open. resolve_settings() derives them
// from the data, the model and, of a run that is resumed, from what it recorded, so that they stay
// what they were even where another version would derive others.
#pragma once
#include <string>
#include <vector>

#include "model/adapter/lora.h"
#include "trainer/train.h"

namespace strata::apps {

struct TrainData;

struct TrainSettings {
  const TrainOptions& options;        // as they were given
  StageOptions stages;                // as ranks have them where these are processes
  std::string out, tensorboard = {};  // of a learning rate among several its own
  double lr = 0;
  int64_t batch_size = 0;    // examples of a step, at most; 0: any number
  int64_t batch_tokens = 0;  // tokens of a step, at most; likewise
  int64_t epochs = 0;
  int64_t steps = 0;  // > 0: instead of epochs
  int64_t warmup_steps = 0;
  int64_t sample_positions = 0;  // that answers to --sample take in the cache
  std::vector<model::LoraModuleSpec> adapter_modules = {};  // of --adapter
};

// `recorded`: options of the saved state (state.h), empty of a new run. Throws Error where two of
// the options exclude each other.
TrainSettings resolve_settings(const TrainOptions& options, const LoadSpec& spec,
                               const TrainData& data, const std::string& recorded = {});

// What a run of these settings alone would be given: of a learning rate among several its own rate
// and folders.
TrainOptions options_of_run_alone(const TrainSettings& settings);

// Peak learning rate where none is given. Of adapters it is lower for wide models, and for batches
// of few examples (0: no limit), whose gradients are noisy.
double default_learning_rate(const std::string& method, int64_t hidden_size, int64_t batch_size);

}  // namespace strata::apps
