// SPDX-License-Identifier: Apache-2.0
// Command: one operation that a client asked for, as plain values, on its way from the server
// through the scheduler to the engine; what comes of it are api::Events (api/event.h), the last of
// them its api::Result (api/result.h).
//
// Who checks what: the server checks form (types, ranges of options, names, which inputs a loss
// has, equal lengths) and fills every default; the engine checks what depends on the model (ids
// below the vocabulary, context length, finite numbers, rank and slot limits, files). Duplicates
// are the server's, order and gaps the scheduler's. N tokens of a datum, K targets a position, P
// tokens of a prompt.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "api/batch.h"
#include "api/ids.h"

namespace strata::structured {
class Grammar;
}

namespace strata::api {

struct LoraConfig {
  int64_t rank = 0;
  uint64_t seed = 0;  // of the initial weights; the server draws one if the client gave none
  bool train_attn = true;
  bool train_mlp = true;
  bool train_unembed = true;
};

// Makes the command's model: fresh, or (create form of load_weights) with the weights and, if
// asked, the moments that a SaveState wrote to load_dir.
struct CreateModel {
  LoraConfig lora = {};
  std::string load_dir = {};  // empty: fresh
  bool load_optimizer = false;
};

struct ForwardBackward {
  std::vector<Datum> data = {};  // CSR tensors are dense by now
  Loss loss = {};  // of every datum, with the defaults of the protocol filled in by the server
  bool forward_only = false;
};

struct OptimStep {
  AdamW adamw = {};
};

// Copies the state of now; what the answer (api::Saved) names is written by a job of the server's:
// adapter_model.safetensors, adapter_config.json and optimizer.safetensors into `dir`, which the
// server has made (below its tmp/). The files are synced, the folder and the rename are the
// server's.
struct SaveState {
  std::string dir = {};
  std::string base_model_name = {};  // for adapter_config.json
};

// The weights of now as fixed sampler weights called `snapshot`. Not ephemeral: written to `dir` as
// in SaveState, without the optimizer; sample commands name the folder's final place. Ephemeral:
// lives in memory; `dir` is where the engine may put it when memory is short. For export: in the
// form that tinker_cookbook.weights reads, and no snapshot.
struct SaveForSampler {
  std::string dir = {};
  std::string base_model_name = {};
  SnapshotId snapshot = {};
  bool ephemeral = false;
  bool for_export = false;
};

// Replaces the model's weights by those that a SaveState wrote to `dir`, and its moments and step
// count by the saved ones or, without `optimizer`, by zero. Nothing changes when it fails.
struct LoadState {
  std::string dir = {};
  bool optimizer = false;
};

struct UnloadModel {};

// num_samples continuations of one prompt. Sample i draws from its own stream, keyed by (seed, i).
// The server fills what is absent: max_tokens with context minus prompt, a seed, and in `stop` the
// model's end tokens unless the client sent `stop: []`.
struct Sample : SampleRequest {
  Sample() { scaled_logprobs = true; }

  SnapshotId snapshot = {};       // empty: the base model
  std::string snapshot_dir = {};  // where to read it from when it is not in memory
  int64_t num_samples = 1;
  std::vector<std::string> stop_texts = {};  // likewise; searched in the generated text only
  bool streams_tokens = false;               // events tell its tokens as they are sampled
  // What every answer fits, for the vocabulary of its base; null: they are free. Of this process
  // alone: bytes of a command have none.
  std::shared_ptr<const structured::Grammar> grammar = nullptr;
  // Answers fit a grammar that another process has, which says what may come next.
  bool has_grammar_elsewhere = false;

  [[nodiscard]] bool is_constrained() const { return grammar != nullptr || has_grammar_elsewhere; }
};

using Operation = std::variant<CreateModel, ForwardBackward, OptimStep, SaveState, SaveForSampler,
                               LoadState, UnloadModel, Sample>;

struct Command {
  RequestId request = {};
  TenantId tenant = {};
  SessionId session = {};
  ModelId model = {};  // empty for Sample
  BaseId base = {};
  int64_t seq_id = 0;        // 1, 2, ... in a model; 0 for CreateModel, UnloadModel and Sample
  uint64_t fingerprint = 0;  // hash of the payload: equal for a request that was sent again
  Operation op = {};

  // Passes, steps and samples, which their sender sends again when told that there is no space. The
  // others are small, and nobody sends the making of a model again.
  [[nodiscard]] bool may_be_put_off() const {
    return std::holds_alternative<ForwardBackward>(op) || std::holds_alternative<OptimStep>(op) ||
           std::holds_alternative<Sample>(op);
  }
};

}  // namespace strata::api
