// SPDX-License-Identifier: Apache-2.0
#include "server/openai/output_size.h"

namespace strata::server {

OutputSize size_of(const api::SampleOutput& output) {
  OutputSize out = {std::ssize(output.prompt_logprobs), std::ssize(output.prompt_topk.ids)};
  for (const api::SampledSequence& sequence : output.sequences) {
    out.tokens += std::ssize(sequence.tokens);
    out.told += std::ssize(sequence.topk.ids);
  }
  out.told += out.tokens;
  out.bytes = std::ssize(output.sequences) * int64_t{sizeof(api::SampledSequence)} +
              out.told * int64_t{sizeof(int32_t) + sizeof(float)};
  return out;
}

OutputSize total_size_of(const std::vector<api::SampleOutput>& outputs) {
  OutputSize total;
  for (const api::SampleOutput& output : outputs) {
    const OutputSize size = size_of(output);
    total.tokens += size.tokens;
    total.told += size.told;
    total.bytes += size.bytes;
  }
  return total;
}

}  // namespace strata::server
