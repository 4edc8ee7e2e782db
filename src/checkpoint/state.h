// SPDX-License-Identifier: Apache-2.0
// A trainer's state: named f32 tensors (masters, moments) and a small JSON text (counts, seeds,
// options), in one folder of optimizer.safetensors and state.json that is replaced as a whole, so
// that the two always belong together, whenever the process was killed. Weights that must match the
// state belong among its tensors; what a trainer writes elsewhere (an adapter, a model) is an
// export of them.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/atomic_dir.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_writer.h"

namespace strata {

constexpr int64_t kMaxStateBytes = 64 << 20;

// Streams one state out; without commit() the previous one stays. One thread.
class TrainerStateWriter {
 public:
  // `dir` is the state's own folder, for example out/trainer.
  TrainerStateWriter(const std::string& dir, std::vector<TensorDecl> tensors);
  // In the order of the declarations.
  void append(std::string_view name, std::span<const float> values);
  void append_view(std::string_view name, const TensorView& values);
  // `json` must be one JSON value.
  void commit(std::string_view json);

 private:
  AtomicDir dir_;
  SafetensorsWriter writer_;
};

// The last state that was committed. Any thread may read.
class TrainerState {
 public:
  // kNotFound when there is none.
  explicit TrainerState(const std::string& dir);
  static bool exists(const std::string& dir);

  [[nodiscard]] const std::string& json() const { return json_; }
  [[nodiscard]] std::span<const TensorInfo> tensors() const { return file_.tensors(); }
  // Reads a whole tensor; an Error names one that is missing, is not F32 or has another shape.
  void read(std::string_view name, const Shape& shape, float* out) const {
    read(name, shape, 0, shape.num_elements(), out);
  }
  // `count` values of it from value `first` on.
  void read(std::string_view name, const Shape& shape, int64_t first, int64_t count,
            float* out) const;

 private:
  std::string json_;
  SafetensorsFile file_;
};

}  // namespace strata
