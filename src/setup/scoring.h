// SPDX-License-Identifier: Apache-2.0
// The loss of examples under a model and adapters, as train evaluates and eval reports it: equal
// examples in equal order give equal bits in both. Engine thread only.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "data/dataset.h"
#include "engine/runner.h"

namespace strata::apps {

struct Score {
  double loss_sum = 0;  // nats, over trained tokens
  int64_t num_trained = 0;
  int64_t num_top = 0;  // trained tokens that no other token is likelier than

  [[nodiscard]] double loss() const { return loss_sum / static_cast<double>(num_trained); }
  [[nodiscard]] double accuracy() const {
    return static_cast<double>(num_top) / static_cast<double>(num_trained);
  }
};

struct SlotScore {
  Score total;
  std::vector<Score> files;  // of the dataset
};

// Throws Error, with the file that has it, for a token that the model's vocabulary lacks.
void check_tokens_in_vocabulary(const data::Dataset& dataset, int64_t vocab_size);

// The file that has the example of this number in the dataset's store.
size_t file_index_of(const data::Dataset& dataset, int64_t number);

// What an engine takes of an example.
api::Datum datum_of(data::Example example);

enum class WantTop : bool { kNo, kYes };

// One result a slot. Passes have at most so many tokens, or one longer example; rows of all slots
// share them. Collective; num_top with kYes alone, which stages do not have.
std::vector<SlotScore> score_dataset(engine::Runner& pipeline,
                                     std::span<const api::AdapterSlot> slots,
                                     const data::Dataset& dataset, int64_t pass_tokens,
                                     WantTop want_top);

}  // namespace strata::apps
