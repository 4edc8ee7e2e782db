// SPDX-License-Identifier: Apache-2.0
#include "model/export/encode.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/error.h"

namespace strata::model {

double TensorError::rms() const {
  return count == 0 ? 0.0 : std::sqrt(square_sum / static_cast<double>(count));
}

double TensorError::rms_error() const {
  return count == 0 ? 0.0 : std::sqrt(error_square_sum / static_cast<double>(count));
}

double TensorError::relative() const {
  return square_sum == 0.0 ? 0.0 : std::sqrt(error_square_sum / square_sum);
}

void TensorError::accumulate(const TensorError& part) {
  count += part.count;
  largest = std::max(largest, part.largest);
  square_sum += part.square_sum;
  largest_error = std::max(largest_error, part.largest_error);
  error_square_sum += part.error_square_sum;
}

void add_rounding_error(std::span<const float> values, std::span<const float> after,
                        TensorError& error) {
  CHECK(values.size() == after.size(), values.size(), after.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const auto value = static_cast<double>(values[i]);
    const double difference = std::fabs(static_cast<double>(after[i]) - value);
    error.largest = std::max(error.largest, std::fabs(value));
    error.square_sum += value * value;
    if (values[i] == after[i]) continue;
    error.largest_error = std::max(error.largest_error, difference);
    error.error_square_sum += difference * difference;
  }
  error.count += std::ssize(values);
}

namespace {

// Adds to `error` what so many blocks, once they are encoded, differ by.
void encode_blocks(const GgufEncoding& encoding, const float* values, int64_t count,
                   std::byte* blocks, TensorError& error) {
  const GgufType& type = *encoding.type;
  encoding.quantise(values, count, blocks);
  std::vector<float> after(static_cast<size_t>(count * type.block_elements));
  type.dequantise(blocks, count, after.data());
  add_rounding_error({values, after.size()}, after, error);
}

// Error where a finite value became none.
void check_no_overflow(const GgufType& type, const TensorError& error) {
  if (std::isfinite(error.largest_error) || !std::isfinite(error.largest)) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("tensor '{}' has values up to {:.4g}, more than {} holds: use bf16 or f32",
                  error.name, error.largest, type.name));
}

}  // namespace

void encode_values(Backend& backend, const GgufEncoding& encoding, std::span<const float> values,
                   std::vector<std::byte>& out, TensorError& error) {
  const GgufType& type = *encoding.type;
  const auto count = std::ssize(values);
  CHECK(count % type.block_elements == 0, count, type.name);
  const int64_t blocks = count / type.block_elements;
  const int64_t each = (1 << 16) / type.block_elements;
  const int64_t parts = (blocks + each - 1) / each;
  out.resize(static_cast<size_t>(blocks * type.block_bytes));
  std::vector<TensorError> errors(static_cast<size_t>(parts));
  backend.run_on_host(parts, [&](int64_t part) {
    const int64_t first = part * each;
    encode_blocks(encoding, values.data() + first * type.block_elements,
                  std::min(each, blocks - first), out.data() + first * type.block_bytes,
                  errors[static_cast<size_t>(part)]);
  });
  for (const TensorError& part : errors) error.accumulate(part);
  check_no_overflow(type, error);
}

}  // namespace strata::model
