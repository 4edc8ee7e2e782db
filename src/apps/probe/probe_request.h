// SPDX-License-Identifier: Apache-2.0
// The request of `strata probe`: one JSON object, parsed strictly. Every fault is an Error that
// names the field.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/batch.h"

namespace strata::apps {

struct ProbeTrain {
  bool parameters = false;  // "what": "params"; otherwise adapters
  int64_t steps = 0;
  api::AdamW adamw;
};

struct ProbeRequest {
  std::vector<api::Datum> data;
  std::vector<api::Sequence> sequences;  // of these data
  bool hidden_states = false;
  bool logits = false;
  bool logprobs = false;
  bool loss = false;
  bool adapter_grads = false;
  bool param_grads = false;
  float mtp_weight = 0.0f;      // 0: multi-token prediction takes no part
  float indexer_weight = 0.0f;  // of the loss that trains indexers; 0: there is none
  std::optional<ProbeTrain> train;
  std::vector<api::SampleRequest> samples;

  // Positions of its longest sequence, what may be sampled included.
  [[nodiscard]] int64_t longest() const;
  [[nodiscard]] bool needs_targets() const {
    return logprobs || loss || adapter_grads || param_grads || train.has_value();
  }
};

// `where` is the file's path, for messages. num_adapters: how many --adapter were given.
ProbeRequest parse_probe_request(std::string_view text, const std::string& where,
                                 int64_t num_adapters);

}  // namespace strata::apps
