// SPDX-License-Identifier: Apache-2.0
// MergedSource: a checkpoint whose weights have adapters added, W + sum of weight * scale * B A, as
// a source of weights. Values are summed in double and rounded to f32 once; they are computed when
// they are read, row by row, so that memory is the adapters and what is read. A tied model of which
// an adapter changes embedding or head has both, apart. Engine thread only.
#pragma once
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "backend/backend.h"
#include "checkpoint/source.h"
#include "model/adapter/lora.h"
#include "model/weights/load.h"

namespace strata::model {

struct AdapterPart {
  std::string dir;
  double weight = 1.0;  // of its change
};

class MergedSource final : public CheckpointSource {
 public:
  // `base` was loaded without memory (kNoLayers) and outlives this. Faults of an adapter are Errors
  // as in load_adapter().
  MergedSource(Backend& backend, const LoadedModel& base, std::span<const AdapterPart> adapters);

  // Whether a tensor is changed at all.
  [[nodiscard]] bool is_changed(std::string_view name) const;
  // Whether embedding and head are apart, and were not in the base.
  [[nodiscard]] bool unties() const { return unties_; }

  // Of a tensor that is changed, `read` gives f32.
  void read(const CheckpointTensor& tensor, int64_t first_element, int64_t count,
            void* raw_out) const override;
  void read_f32(const CheckpointTensor& tensor, int64_t first_element, int64_t count,
                float* out) const override;
  // Not of a tensor that is changed.
  void read_bytes(const CheckpointTensor& tensor, int64_t first_byte,
                  std::span<std::byte> out) const override;
  [[nodiscard]] CheckpointLayout layout() const override;
  [[nodiscard]] std::string readable_types() const override {
    return base_.checkpoint->readable_types();
  }

 private:
  // One module of an adapter, its factors on the host.
  struct Delta {
    std::vector<float> a, b;
    int64_t rank = 0;
    int64_t columns = 0;  // of the weight that it changes
    int64_t rows = 0;     // of B for each expert, all halves together
    bool is_embedding = false;
    double scale = 0.0;  // with the adapter's weight
  };
  // What a module does to rows [first_row, first_row + rows) of a tensor.
  struct Piece {
    const Delta* delta = nullptr;
    int64_t first_row = 0;
    int64_t rows = 0;
    int64_t expert = 0;
    int64_t first_out = 0;  // of the first row, among B's of the expert
  };

  void add_adapter(const AdapterPart& part);
  void check_copies(const std::string& dir) const;
  const Delta* keep(const LoraModule& module, double weight);
  void add_layer_pieces(const LoraAdapter& adapter,
                        const std::unordered_map<const LoraModule*, const Delta*>& deltas);
  void add_whole(const std::string& name, const Delta& delta, int64_t rows);
  void untie();
  [[nodiscard]] const CheckpointTensor& stored(const CheckpointTensor& tensor) const;
  void add_change(const std::vector<Piece>& pieces, int64_t row, std::span<double> sum) const;

  Backend& backend_;
  const LoadedModel& base_;
  std::string embedding_, head_;  // names of both
  bool unties_ = false;
  std::deque<Delta> deltas_;
  std::unordered_map<std::string, std::vector<Piece>> pieces_;  // by tensor
};

}  // namespace strata::model
