// SPDX-License-Identifier: Apache-2.0
#include "model/blocks/block_work.h"

#include "model/pass/pass.h"

namespace strata::model {

double num_query_key_pairs(int64_t begin, int64_t end, int64_t window, bool in_chunks) {
  const auto before = [&](int64_t position) {
    const auto s = static_cast<double>(position);
    const auto w = static_cast<double>(window);
    if (in_chunks) {
      const auto in_last = static_cast<double>(position % window);
      return (s - in_last) * w / 2.0 + in_last * in_last / 2.0;
    }
    return window == 0 || s <= w ? s * s / 2.0 : w * w / 2.0 + (s - w) * w;
  };
  return before(end) - before(begin);
}

double executed_attention_flops(const Pass& pass, const BlockWork& work) {
  double flops = 0.0;
  for (const PassSequence& sequence : pass.sequences) {
    const int64_t begin = sequence.first_position;
    const int64_t end = begin + sequence.end - sequence.begin;
    flops +=
        work.executed_pair_flops * num_query_key_pairs(begin, end, work.window, work.in_chunks);
    for (const WindowWork& keys : work.windows) {
      if (keys.window > 0) flops += keys.pair_flops * num_query_key_pairs(begin, end, keys.window);
    }
  }
  return flops;
}

}  // namespace strata::model
