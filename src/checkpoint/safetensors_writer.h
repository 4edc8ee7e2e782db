// SPDX-License-Identifier: Apache-2.0
// SafetensorsWriter: writes one safetensors file as a stream. All tensors are declared first; their
// data then follows in the order of tensors(), in slices of any size, and commit() makes the file
// appear, durable and whole. The same declarations and data give the same bytes. One thread.
//   SafetensorsWriter writer(path, {{"w", DType::kF32, {2, 3}}});
//   for (const TensorDecl& tensor : writer.tensors()) writer.append_f32(tensor.name, ...);
//   writer.commit();
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "tensor/dtype.h"
#include "tensor/view.h"

namespace strata {

struct TensorDecl {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  int integer_bytes = 0;  // whole numbers of 4 or 8 bytes instead (I32, I64), appended as bytes

  [[nodiscard]] int64_t element_bytes() const {
    return integer_bytes > 0 ? integer_bytes : dtype_bytes(dtype);
  }
  [[nodiscard]] int64_t bytes() const { return shape.num_elements() * element_bytes(); }
};

class SafetensorsWriter {
 public:
  // `metadata` becomes __metadata__; {"format": "pt"} is what transformers asks for in a model
  // file.
  SafetensorsWriter(std::string path, std::vector<TensorDecl> tensors,
                    const std::map<std::string, std::string>& metadata = {});

  // In the order in which the data is wanted: as declared, but wider elements before narrower ones,
  // so that every tensor is aligned to its element.
  [[nodiscard]] std::span<const TensorDecl> tensors() const { return tensors_; }

  // The next bytes of the tensor, as stored. `name` is checked: it must be the tensor whose turn it
  // is.
  void append(std::string_view name, std::span<const std::byte> bytes);
  // The next elements, rounded to the declared type; a value that came from that type keeps its
  // bits.
  void append_f32(std::string_view name, std::span<const float> values);
  // The whole tensor from an f32 view whose rows may be apart.
  void append_view(std::string_view name, const TensorView& values);

  // Two steps, so that several files can appear together: seal() completes the file under its
  // temporary name, commit() (which seals if need be) renames it.
  void seal();
  void commit();

 private:
  void skip_finished();

  AtomicFile file_;
  std::vector<TensorDecl> tensors_;
  size_t current_ = 0;         // tensor whose turn it is
  int64_t current_bytes_ = 0;  // of it already written
  bool sealed_ = false;
};

// Rounds to nearest even; a NaN keeps the top bits of its payload, so that widening and narrowing
// again is the identity for all 65,536 patterns of both types.
uint16_t narrow_to_16_bits(float value, DType dtype);

}  // namespace strata
