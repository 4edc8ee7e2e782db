// SPDX-License-Identifier: Apache-2.0
// PageNeed: what a sample needs of an engine's cache, and CachePages, the one arithmetic of it: the
// engine's layout says how long a page is (Capacity), and whoever makes space counts with it. The
// first row of a request reads the prompt and counts for its pages; a further row begins at the
// prompt's last token, on a page of its own, and shares the full pages before. Plain values.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "api/command.h"

namespace strata::api {

struct PageNeed {
  int64_t pages = 0;
  int64_t states = 0;  // of sequences as a whole
};

struct CachePages {
  int64_t page_size = 1;  // positions

  [[nodiscard]] int64_t holding(int64_t positions) const {
    return (positions + page_size - 1) / page_size;
  }
  // Kept as long as a request of several rows runs.
  [[nodiscard]] int64_t of_prompt(const SampleRequest& request) const {
    return holding(prompt_size(request));
  }
  [[nodiscard]] static int64_t prompt_states(const Sample& sample) {
    return sample.num_samples > 1 ? 1 : 0;
  }
  // Pages of a row with so many tokens of its own, those of the prompt left out.
  [[nodiscard]] int64_t behind_prompt(const SampleRequest& request, int64_t new_tokens,
                                      bool is_further) const {
    const int64_t prompt = prompt_size(request);
    return holding(prompt + new_tokens) - (is_further ? (prompt - 1) / page_size : holding(prompt));
  }
  // The most pages of sample `index` when it joins.
  [[nodiscard]] PageNeed to_join(const Sample& sample, int64_t index) const {
    if (index > 0) return {behind_prompt(sample, sample.max_tokens, true), 1};
    return {of_prompt(sample) + behind_prompt(sample, sample.max_tokens, false),
            1 + prompt_states(sample)};
  }
  // Positions of a prompt that need not be read again where they are known: its last token must be,
  // and so must all from the first whose next token's distribution is asked for.
  [[nodiscard]] static int64_t max_reusable_positions(const SampleRequest& request) {
    int64_t most = prompt_size(request) - 1;
    if (request.prompt_draws > 0) return 0;
    if (request.wants_prompt_logprobs())
      most = std::min(most, std::max<int64_t>(1, request.first_prompt_logprob) - 1);
    const std::vector<int64_t>& first = request.prompt_targets.first;
    for (size_t i = 0; !request.prompt_targets.empty() && i + 1 < first.size(); ++i) {
      if (first[i] < first[i + 1]) return std::min(most, static_cast<int64_t>(i));
    }
    return most;
  }
  // Pages of a request that is alone, at any time: its prompt and its largest row.
  [[nodiscard]] int64_t of_largest(const Sample& sample) const {
    return holding(prompt_size(sample) + sample.max_tokens) + (sample.num_samples > 1 ? 1 : 0);
  }
  // The inverse: positions of the longest request that `pages` hold, whatever its rows.
  [[nodiscard]] int64_t longest(int64_t pages) const { return (pages - 1) * page_size; }

 private:
  [[nodiscard]] static int64_t prompt_size(const SampleRequest& request) {
    return static_cast<int64_t>(request.prompt.size());
  }
};

}  // namespace strata::api
