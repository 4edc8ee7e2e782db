// SPDX-License-Identifier: Apache-2.0
// Result: the answer to one Command, by value: what its operation yields, or a Failure. Exactly one
// for each accepted command.
#pragma once
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "api/batch.h"
#include "api/ids.h"
#include "base/error.h"

namespace strata::api {

// Whose fault it was, as the protocol tells it to clients.
enum class FaultCategory : uint8_t { kUser, kServer };

// Whose a fault is while a command ran: what the world refused is the server's, all else the
// user's.
constexpr FaultCategory category_of(ErrorCode code) {
  return code == ErrorCode::kIo ? FaultCategory::kServer : FaultCategory::kUser;
}

struct Failure {
  FaultCategory category = FaultCategory::kServer;
  std::string message = {};
};

struct DatumResult {
  std::vector<float> logprobs = {};  // as the datum's targets: [N] or [N, K]
  int64_t num_targets = 0;           // K, or 0 for [N]
};

// What ForwardBackward gives; metric names have exactly one colon, and loss:sum is always there.
struct ForwardBackwardResult {
  std::vector<DatumResult> data = {};  // in the order of the command
  std::map<std::string, double> metrics = {};
};

enum class SavedAs : uint8_t {
  kNothing,  // an ephemeral one has no files
  kState,    // weights, and moments where they are a model's
  kExport,   // weights, as other programs of the Tinker service read them
};

// What SaveState and SaveForSampler give. The engine has copied what is to be saved and holds it
// under the request's id, until a job writes the files there (engine/held_copies.h), or lets it go.
struct Saved {
  SavedAs what = SavedAs::kNothing;
  std::string where = {};  // the command's folder
};

struct Done {};  // CreateModel, LoadState, UnloadModel

// The value of prompt logprobs where there is none, NaN as the protocol has it.
constexpr float kNoLogprob = std::numeric_limits<float>::quiet_NaN();
// Empty cells of top-k tables: id 0 and this.
constexpr float kNoTopk = -99999.0f;

struct TopkTable {
  std::vector<int32_t> ids = {};     // [length, k], descending by logprob where they are the top
  std::vector<float> logprobs = {};  // likewise
  int64_t k = 0;                     // 0: not asked
};

struct SampledSequence {
  std::vector<int32_t> tokens = {};  // never empty
  std::vector<float> logprobs =
      {};                // of softmax(logits / temperature); at temperature 0 of the logits
  TopkTable topk = {};   // of the same distribution
  bool stopped = false;  // by a stop id or text; false: max_tokens
};

struct SampleOutput {
  std::vector<SampledSequence> sequences = {};     // num_samples
  std::vector<float> prompt_logprobs = {};         // [P] with entry 0 kNoLogprob, or empty
  TopkTable prompt_topk = {};                      // [P, k]; row 0 empty cells
  std::vector<float> prompt_target_logprobs = {};  // as prompt_targets.ids; 0 where none was asked
  TopkTable prompt_draws = {};                     // [P - 1, k]; logprobs of the model
  int64_t cached_tokens = 0;                       // of the prompt, that were known and not read
};

using Outcome = std::variant<Failure, Done, ForwardBackwardResult, StepResult, Saved, SampleOutput>;

struct Result {
  RequestId request = {};
  Outcome outcome = {};
};

}  // namespace strata::api
