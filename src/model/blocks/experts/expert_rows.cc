// SPDX-License-Identifier: Apache-2.0
#include "model/blocks/experts/expert_rows.h"

#include <algorithm>

#include "model/pass/pass.h"
#include "ops/elementwise.h"

namespace strata::model {

void ExpertRows::build(Backend& backend, IndexView<int64_t> expert_ends, IndexView<int32_t> tokens,
                       std::span<const PassSequence> sequences) {
  host_ends_.resize(static_cast<size_t>(expert_ends.size()));
  host_tokens_.resize(static_cast<size_t>(tokens.size()));
  ops::to_host(backend, expert_ends, host_ends_);
  ops::to_host(backend, tokens, host_tokens_);
  divide(host_ends_, host_tokens_, sequences);
}

void ExpertRows::divide(std::span<const int64_t> expert_ends, std::span<const int32_t> tokens,
                        std::span<const PassSequence> sequences) {
  experts_.clear();
  runs_.clear();
  expert_ends_.clear();
  run_ends_.clear();
  // As many as there can be, so that another routing of as many tokens allocates nothing.
  const size_t most = std::min(tokens.size(), expert_ends.size() * sequences.size());
  experts_.reserve(expert_ends.size());
  for (auto* list : {&expert_ends_, &run_ends_}) list->reserve(most);
  runs_.reserve(most);
  groups.reserve(expert_ends.size());
  low_rank.reserve(most);
  products.reserve(most);
  group_lists.products.reserve(expert_ends.size());
  group_lists.outputs.reserve(expert_ends.size());
  group_lists.runs.reserve(most);

  int64_t row = 0;
  for (size_t e = 0; e < expert_ends.size(); ++e) {
    const int64_t end = expert_ends[e];
    if (row == end) continue;
    const auto expert = static_cast<int64_t>(e);
    experts_.push_back({row, end, expert, nullptr, std::ssize(expert_ends_), 0});
    const size_t first_run = runs_.size();
    const auto* sequence = sequences.data();
    while (row < end) {
      while (sequence->end <= tokens[static_cast<size_t>(row)]) ++sequence;
      int64_t last = row + 1;
      while (last < end && tokens[static_cast<size_t>(last)] < sequence->end) ++last;
      if (runs_.size() == first_run || runs_.back().adapter != sequence->adapter) {
        runs_.push_back({row, row, expert, sequence->adapter, std::ssize(run_ends_), 0});
      }
      ExpertSegment& run = runs_.back();
      run.end = last;
      ++run.num_ends;
      run_ends_.push_back(last - run.begin);
      ++experts_.back().num_ends;
      expert_ends_.push_back(last - experts_.back().begin);
      row = last;
    }
  }
}

void ExpertRows::build_fullest(int64_t top_k, int64_t num_experts, int64_t num_tokens,
                               std::span<const PassSequence> sequences) {
  host_ends_.clear();
  host_tokens_.clear();
  for (int64_t e = 0; e < num_experts; ++e) {
    host_ends_.push_back(std::min(e + 1, top_k) * num_tokens);
    for (int64_t t = 0; t < num_tokens && e < top_k; ++t) {
      host_tokens_.push_back(static_cast<int32_t>(t));
    }
  }
  divide(host_ends_, host_tokens_, sequences);
}

}  // namespace strata::model
