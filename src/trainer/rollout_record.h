// SPDX-License-Identifier: Apache-2.0
// RolloutRecord: the file of what each step of a run on rewards learned from, a line of JSON for
// each answer:
//   {"step": 3, "sample": 5, "of": 64, "prompt": 17, "tokens": [...], "logprobs": [...],
//    "reward": 1.0}
// `sample` is its number among the `of` of the step, `prompt` that of the example, from 0 in the
// order of the data; "omitted" is in place of a reward that there is none of, and why. A step is in
// the file before its optimizer step. A run that goes on from an earlier save finds there the
// rewards of the steps since then. One thread.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trainer/grpo.h"

namespace strata::apps {

struct RecordedReward {
  int64_t prompt = 0;
  std::vector<int32_t> tokens = {};
  std::optional<double> reward = {};
  std::string omitted = {};
};

class RolloutRecord {
 public:
  // Reads what the file has of the steps behind `steps_done`. Of a step that a kill has cut short
  // what is there counts, and the file ends before it. Throws Error for a line that is none.
  RolloutRecord(std::string path, int64_t steps_done);

  // What is known of answer `index` of a step; null: nothing. Throws Error where other tokens, or
  // another prompt's, were recorded.
  [[nodiscard]] const RecordedReward* find(int64_t step, size_t index, int64_t prompt,
                                           const Rollout& rollout) const;
  // Durable when it returns; nothing happens where the file has the step.
  void append(int64_t step, std::span<const RolloutGroup> groups);

 private:
  std::string path_;
  int64_t last_step_ = 0;  // that is whole in the file
  // What is known of each step, by the number of the answer.
  std::map<int64_t, std::map<size_t, RecordedReward>> known_;
};

}  // namespace strata::apps
