// SPDX-License-Identifier: Apache-2.0
// Values on their way into a file: rounded to its type, and what the rounding changes, measured
// tensor by tensor. Engine thread only.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "checkpoint/gguf/quantise.h"

namespace strata::model {

// Values of a tensor that are on their way at once, at most.
constexpr int64_t kSliceElements = 2 << 20;

// What writing a tensor changed: its values before, and the differences to those after.
struct TensorError {
  std::string name = {};           // in the file
  std::string from = {}, to = {};  // types
  int64_t count = 0;               // elements
  double largest = 0;              // of the values
  double square_sum = 0;           // likewise
  double largest_error = 0;
  double error_square_sum = 0;

  [[nodiscard]] double rms() const;
  [[nodiscard]] double rms_error() const;
  // rms_error() of rms(), 0 of a tensor of zeros.
  [[nodiscard]] double relative() const;
  void accumulate(const TensorError& part);
};

// The values' blocks, whole ones; adds to `error` what they differ by. Error{kInvalidArgument}
// where a finite value became none.
void encode_values(Backend& backend, const GgufEncoding& encoding, std::span<const float> values,
                   std::vector<std::byte>& out, TensorError& error);

// Adds to `error` the values and what `after` differs by.
void add_rounding_error(std::span<const float> values, std::span<const float> after,
                        TensorError& error);

}  // namespace strata::model
