// SPDX-License-Identifier: Apache-2.0
// MergedSource: a checkpoint whose weights have adapters added, W + sum of weight * scale * B A, as
// a source of weights. Values are summed in double and rounded to f32 once; they are computed when
// they are read, row by row, and the adapters' factors are read with them: memory is what is read
// and the modules of one layer. A tied model of which an adapter changes embedding or head has
// both, apart. One thread.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "checkpoint/source.h"
#include "model/adapter/io.h"
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

  // `read` gives f32 of a tensor that is changed.
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
  struct Adapter {
    AdapterModules file;
    double weight = 1.0;
  };
  // What one module of an adapter does.
  struct Change {
    const Adapter* adapter = nullptr;
    size_t module = 0;  // of the file's
    int group = 0;      // the layer; -1 the embedding, -2 the head
  };
  // Its factors on the host.
  struct Factors {
    std::vector<float> a, b;
    int64_t rank = 0;
    int64_t columns = 0;  // of the weight that it changes
    int64_t rows = 0;     // of B for each expert, all halves together
    bool is_embedding = false;
    double scale = 0.0;  // with the adapter's weight
    // sum [columns] += scale * (B A) of a row.
    void add_embedding_row(size_t row, std::span<double> sum) const;
    void add_matrix_row(int64_t expert, int64_t out, std::span<double> sum) const;
  };
  // What a module does to rows [first_row, first_row + rows) of a tensor.
  struct Piece {
    const Change* change = nullptr;
    int64_t first_row = 0;
    int64_t rows = 0;
    int64_t expert = 0;
    int64_t first_out = 0;  // of the first row, among B's of the expert
  };
  using Changes = std::map<std::pair<int, int>, const Change*>;  // by layer and target

  void add_adapter(const AdapterPart& part);
  void check_base_copies(const std::string& dir, const PeftAdapter& peft) const;
  void check_base_copy(const std::string& dir, const PeftAdapter& peft, const TensorInfo& copy,
                       const CheckpointTensor& tensor) const;
  void add_layer_pieces(const Changes& changes);
  // What the target's change does to a parameter, which is the target or the half of its outputs.
  void add_changed_piece(const Changes& changes, const Parameter& parameter, int target,
                         int64_t first_out);
  void add_piece_outside_layers(const std::string& name, const Changes& changes, int target);
  void untie_embeddings();
  [[nodiscard]] const CheckpointTensor& find_base_tensor(const CheckpointTensor& tensor) const;
  // Brings the factors of these pieces, and lets those of another group go.
  void switch_factors(const std::vector<Piece>& pieces) const;
  [[nodiscard]] Factors read_factors(const Change& change) const;
  void add_row_change(const std::vector<Piece>& pieces, int64_t row, std::span<double> sum) const;
  // To the row's elements among `values`, which are those of the tensor from `first_element` on.
  void add_row_change_rounded(const std::vector<Piece>& pieces, int64_t row, int64_t columns,
                              int64_t first_element, std::span<float> values) const;

  Backend& backend_;
  const LoadedModel& base_;
  std::string embedding_, head_;  // names of both
  bool unties_ = false;
  std::deque<Adapter> adapters_;
  std::deque<Change> changes_;
  std::unordered_map<std::string, std::vector<Piece>> pieces_;  // by tensor
  mutable std::unordered_map<const Change*, Factors> factors_;  // of one group
  mutable int group_ = 0;
};

}  // namespace strata::model
