// SPDX-License-Identifier: Apache-2.0
// Event: what happens to one request, as plain values, on its way from the engine to whoever
// listens. A request has any number of them; an Outcome is the last, and there is exactly one.
#pragma once
#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

#include "api/ids.h"
#include "api/result.h"

namespace strata::api {

// The request waits for its turn.
struct Accepted {};

// Tokens that one row of a Sample was given, in order and without gaps: of samples that asked for
// them (Sample::streams_tokens) alone.
struct RowTokens {
  int64_t row = 0;                   // which of num_samples
  int64_t first = 0;                 // the place in the row of tokens[0]
  std::vector<int32_t> tokens = {};  // never empty
  std::vector<float> logprobs = {};  // as tokens; as SampledSequence has them, and so is topk
  TopkTable topk = {};
  // The prompt's, where they were asked for: with the first tokens that its sample is told alone,
  // as SampleOutput has them.
  std::vector<float> prompt_logprobs = {};
  TopkTable prompt_topk = {};
  bool ended = false;    // the row's last
  bool stopped = false;  // of one that ended: by a stop id or text; false: max_tokens
};

// What a sample that is told no tokens hears: so many more of a row were sampled.
struct Sampled {
  int64_t row = 0;  // which of num_samples
  int64_t count = 0;
};

// What data that take long hear: so many of them are done, of one that is under way a part.
struct Progress {
  double done = 0.0;
  int64_t total = 0;
};

using Happening = std::variant<Accepted, RowTokens, Sampled, Progress, Outcome>;

struct Event {
  RequestId request = {};
  Happening what = {};

  Event(RequestId of, Happening happened) : request(std::move(of)), what(std::move(happened)) {}
  // The last one of a request.
  Event(Result result) : request(std::move(result.request)), what(std::move(result.outcome)) {}

  [[nodiscard]] bool is_last() const { return std::holds_alternative<Outcome>(what); }
};

}  // namespace strata::api
