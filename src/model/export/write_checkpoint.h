// SPDX-License-Identifier: Apache-2.0
// A source of weights written as the safetensors of a Hugging Face directory: with its own types or
// others, in its own shards or others, layer by layer or in stacks (checkpoint/stacks.h). Memory is
// one slice of a tensor (kWriteBytes). One thread.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "checkpoint/source.h"
#include "model/export/encode.h"
#include "model/weights/load.h"

namespace strata::model {

// A slice in f32 and as it is written, at most.
constexpr int64_t kWriteBytes = kSliceElements * 8;

struct WriteOptions {
  std::optional<DType> dtype = {};  // nothing: each tensor's own
  // Bytes of a file at most, but for a tensor that is larger; tensors in the order of the model. 0:
  // the source's files and order.
  int64_t shard_bytes = 0;
  bool stacked = false;  // layers of one config as one tensor; not with the source's files
};

// `source` is that of `names` or one made of it; `names` was loaded without memory (kNoLayers).
// Returns what rounding changed, in the order of the file; nothing where a signal asked to stop
// (base/stop.h), and then no file has appeared.
std::optional<std::vector<TensorError>> write_checkpoint(Backend& backend,
                                                         const CheckpointSource& source,
                                                         const LoadedModel& names,
                                                         const std::string& dir,
                                                         const WriteOptions& options);

}  // namespace strata::model
