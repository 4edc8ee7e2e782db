// SPDX-License-Identifier: Apache-2.0
// Options of the choice of a token that are numbers, as rows: what each is called in a request (on
// the command line with '-' for '_'), its range, and the value at which it changes nothing, to the
// bit. Checks, command lines and the endpoint loop over them; top_k and logit_bias go with them.
//
// Order: bias, penalties, temperature, top_k, top_p, min_p (ops/choose_tokens.h has the formulas).
// Logprobs are those of the logits before bias, penalties and cuts.
#pragma once
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <string_view>

#include "api/batch.h"
#include "base/rng.h"

namespace strata::api {

struct SamplingOption {
  std::string_view name;
  float SampleRequest::* field;
  float neutral, least, most;
  std::string_view wanted;  // the range, for messages
  std::string_view help;    // for command lines
  bool excludes_least = false;
  bool is_cut = false;               // of what may be drawn: nothing at temperature 0
  bool in_generation_config = true;  // the file may have it, by this name

  [[nodiscard]] constexpr bool allows(double value) const {
    return (excludes_least ? value > least : value >= least) && value <= most;
  }
};

constexpr float kNoMost = std::numeric_limits<float>::max();
constexpr SamplingOption kSamplingOptions[] = {
    {.name = "temperature",
     .field = &SampleRequest::temperature,
     .neutral = 1.0f,
     .least = 0.0f,
     .most = kNoMost,
     .wanted = "0 or more",
     .help = "0: greedy"},
    {.name = "top_p",
     .field = &SampleRequest::top_p,
     .neutral = 1.0f,
     .least = 0.0f,
     .most = 1.0f,
     .wanted = "above 0 and at most 1",
     .help = "1: off",
     .excludes_least = true,
     .is_cut = true},
    {.name = "min_p",
     .field = &SampleRequest::min_p,
     .neutral = 0.0f,
     .least = 0.0f,
     .most = 1.0f,
     .wanted = "0 to 1",
     .help = "tokens stay that are so likely, as a share of the likeliest; 0: off",
     .is_cut = true},
    {.name = "presence_penalty",
     .field = &SampleRequest::presence_penalty,
     .neutral = 0.0f,
     .least = -2.0f,
     .most = 2.0f,
     .wanted = "-2 to 2",
     .help = "off the logits of the answer's tokens; 0: off",
     .in_generation_config = false},
    {.name = "frequency_penalty",
     .field = &SampleRequest::frequency_penalty,
     .neutral = 0.0f,
     .least = -2.0f,
     .most = 2.0f,
     .wanted = "-2 to 2",
     .help = "likewise, once for each time that a token is in the answer; 0: off",
     .in_generation_config = false},
    {.name = "repetition_penalty",
     .field = &SampleRequest::repetition_penalty,
     .neutral = 1.0f,
     .least = 0.01f,
     .most = 100.0f,
     .wanted = "0.01 to 100",
     .help = "divides logits above 0 of tokens of prompt and answer, multiplies others; 1: off"},
};

constexpr size_t kMostLogitBiases = 1024;  // of a request
constexpr float kMostLogitBias = 100.0f;   // and, negative, the least

// What sample `i` of a server's request draws with. Others who want the same answer use it.
inline uint64_t sample_seed(uint64_t seed, int64_t i) {
  constexpr uint64_t kSeedStream = 0x73657276652d31;  // keeps these seeds apart from other draws
  const auto words = Counter{.seed = seed, .stream = kSeedStream}.words(static_cast<uint64_t>(i));
  return uint64_t{words[0]} << 32 | words[1];
}

}  // namespace strata::api
