// SPDX-License-Identifier: Apache-2.0
// What an adapter remembers of the numbers of its base: in which types the base had its matrices,
// and a hash of the names, types and shapes of those in few bits. Weights in 4 bits are others than
// those that they were made of, so that an adapter of the one is less exact over the other; and so
// with the table of RoPE where a base has two. It is in the metadata of adapter_model.safetensors,
// which PEFT does not read.
#pragma once
#include <map>
#include <optional>
#include <string>

#include "checkpoint/peft.h"
#include "checkpoint/source.h"
#include "model/weights/load.h"

namespace strata::model {

struct BaseFingerprint {
  std::string types;  // "29 Q4_0, 1 Q8_0": matrices by type
  std::string hash;   // the same for all bases without a matrix in few bits
};

BaseFingerprint base_fingerprint(const CheckpointSource& source);
// What an adapter's file says, if anything.
std::optional<BaseFingerprint> saved_base_fingerprint(const PeftAdapter& peft);

// Which of the two tables that its base's RoPE may have (longrope) an adapter was trained with,
// "short" or "long", if it says so.
std::optional<std::string> saved_rope_table(const PeftAdapter& peft);

// For the metadata of an adapter's file: of numbers nothing for a model that was made in memory.
std::map<std::string, std::string> base_fingerprint_metadata(const LoadedModel& model);

// What is to be said where an adapter meets a base with other numbers than its own; else empty.
std::string base_mismatch_warning(const PeftAdapter& peft, const std::string& dir,
                                  const CheckpointSource& source);
// What is to be said where a run has another table of RoPE than the adapter was trained with.
std::string rope_mismatch_warning(const PeftAdapter& peft, const std::string& dir,
                                  const ModelConfig& config);

}  // namespace strata::model
