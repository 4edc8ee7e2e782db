// SPDX-License-Identifier: Apache-2.0
#include "apps/bench/inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "base/error.h"
#include "model/adapter/specs.h"
#include "model/weights/no_layers.h"
#include "ops/elementwise.h"
#include "setup/load_spec.h"
#include "tensor/narrow.h"

namespace strata::apps {
namespace {

uint64_t mixed(uint64_t index) {
  const uint64_t x = index * 0x9E3779B97F4A7C15ull;
  return (x ^ (x >> 29)) * 0xBF58476D1CE4E5B9ull;
}

constexpr float kLargest = 0.035f;  // of what is random
constexpr uint8_t kField = 32;      // of a form's scales in whole numbers
constexpr uint8_t kOneInE4m3 = 0x38;
constexpr int64_t kSlice = 8 << 20;  // values that are written at once

// Before it is scaled.
float largest_code_value(const NarrowLayout& layout) {
  if (layout.codes == NarrowCodes::kE4m3) return 448.0f / 256;
  if (layout.bits == 8) return 127.0f;
  if (layout.high_bits() > 0) {
    const int greatest = (1 << layout.bits) - 1 + layout.least_code;
    return static_cast<float>(std::max(greatest, -layout.least_code));
  }
  float largest = 0.0f;
  for (int i = 0; i < 16; ++i) largest = std::max(largest, std::abs(layout.values[i]));
  return largest;
}

// So that the largest code stands for kLargest.
float group_scale(const NarrowLayout& layout) {
  return kLargest / largest_code_value(layout) / (layout.has_super_blocks() ? kField : 1);
}

// A code of random bits, never a NaN.
uint8_t make_code(const NarrowLayout& layout, uint8_t random) {
  if (layout.bits == 4) return random & 15;
  if (layout.high_bits() > 0)
    return static_cast<uint8_t>(random % (1 << layout.bits) + layout.least_code);
  const bool is_nan = layout.codes == NarrowCodes::kE4m3 && (random & 0x7f) == 0x7f;
  return is_nan ? 0 : random;
}

void fill_random_codes(const NarrowLayout& layout, uint64_t key, std::span<uint8_t> codes) {
  for (size_t c = 0; c < codes.size(); ++c)
    codes[c] = make_code(layout, static_cast<uint8_t>(mixed(key + c) >> 56));
}

// Fills each kind of field with one value. `num_fields`: bytes of those that are no super-block's.
void fill_scales(const NarrowLayout& layout, int64_t num_fields, std::span<uint8_t> bytes) {
  const float scale = group_scale(layout);
  const auto size = std::ssize(bytes);
  if (layout.scale == NarrowScale::kFloat) {
    for (int64_t i = 0; i < size; i += 4) std::memcpy(&bytes[i], &scale, sizeof(scale));
    return;
  }
  if (layout.scale == NarrowScale::kE4m3) {
    const float pair[] = {256.0f * scale, 0.0f};
    std::fill_n(bytes.begin(), num_fields, kOneInE4m3);
    for (int64_t i = num_fields; i < size; i += 8) std::memcpy(&bytes[i], pair, sizeof(pair));
    return;
  }
  const uint16_t half = float_to_f16(scale);
  const uint8_t field = layout.scale == NarrowScale::kExponent ? 120 : kField;
  for (int64_t i = 0; i < size; ++i) {
    const bool is_half = layout.field_bytes == 2 || i >= num_fields;
    bytes[i] = is_half ? static_cast<uint8_t>(i % 2 == 0 ? half & 0xff : half >> 8) : field;
  }
}

// A row of a form: random codes, and behind them its scales.
void fill_random_narrow_row(const NarrowLayout& layout, int64_t cols, uint64_t key,
                            std::byte* out) {
  const std::span row(reinterpret_cast<uint8_t*>(out), static_cast<size_t>(layout.row_bytes(cols)));
  fill_random_codes(layout, key, row.first(static_cast<size_t>(cols)));
  fill_scales(layout, cols / kNarrowGroup * layout.fields * layout.field_bytes,
              row.subspan(static_cast<size_t>(cols)));
}

// Rows from `begin` on of the parameter of this index.
void fill_random_narrow_rows(Backend& backend, const model::ModelWeights& weights, size_t index,
                             int64_t begin, int64_t rows, std::byte* out) {
  const model::Parameter& parameter = weights.table()[index];
  const NarrowLayout& layout = narrow_layout(parameter.panel.form);
  const int64_t cols = parameter.num_cols();
  const int64_t row_bytes = layout.row_bytes(cols);
  backend.run_on_host(rows, [&](int64_t row) {
    fill_random_narrow_row(layout, cols,
                           (index << 40) + static_cast<uint64_t>((begin + row) * cols),
                           out + row * row_bytes);
  });
}

void fill_narrow_parameter(Backend& backend, model::ModelWeights& weights, size_t index) {
  const model::Parameter& parameter = weights.table()[index];
  const NarrowForm form = parameter.panel.form;
  const int64_t cols = parameter.num_cols();
  const int64_t row_bytes = narrow_layout(form).row_bytes(cols);
  const int64_t step = std::max<int64_t>(1, kSlice / cols);
  for (int64_t begin = 0; begin < parameter.num_rows(); begin += step) {
    const int64_t rows = std::min(parameter.num_rows() - begin, step);
    const Scratch::Mark mark(backend.scratch());
    auto* const data = static_cast<std::byte*>(backend.scratch().take(rows * row_bytes));
    fill_random_narrow_rows(backend, weights, index, begin, rows, data);
    weights.write_narrow_rows(backend, index, begin,
                              {.form = form, .data = data, .rows = rows, .cols = cols});
  }
}

// Throws Error where none has the name.
NarrowForm parse_narrow_form(const std::string& name) {
  for (int i = 1; i < kNumNarrowForms; ++i) {
    const auto form = static_cast<NarrowForm>(i);
    if (narrow_layout(form).name == name) return form;
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--weights: got '{}' for random weights, want bf16, {}", name,
                          narrow_form_names()));
}

// Columns that have their scales together.
int64_t block_columns(const NarrowLayout& layout) {
  return layout.has_super_blocks() ? kNarrowSuper : kNarrowGroup;
}

bool can_have_form(const model::Parameter& parameter, const NarrowLayout& layout) {
  if (!parameter.is_matrix() || parameter.buffer || parameter.expert > 0) return false;
  return parameter.shape[1] % block_columns(layout) == 0;
}

// Forms of few bits where `name` is one.
model::WeightForms choose_weight_forms(const Backend& backend, const model::ModelConfig& config,
                                       DType dtype, const std::string& name) {
  model::WeightForms forms;
  if (name == "bf16" || name == "auto") return forms;
  const NarrowForm form = parse_narrow_form(name);
  if (dtype != DType::kBF16) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--weights {}: of --dtype bf16 alone", name));
  }
  const model::ModelWeights names(backend, config, dtype, nullptr, model::kNoLayers);
  for (const model::Parameter& parameter : names.table()) {
    if (can_have_form(parameter, narrow_layout(form))) forms.emplace(parameter.name, form);
  }
  return forms;
}

// Uniform in +-kLargest, by the number of the element.
void fill_random_values(Backend& backend, uint64_t key, std::span<float> values) {
  constexpr int64_t kEach = 1 << 16;
  const auto count = std::ssize(values);
  backend.run_on_host((count + kEach - 1) / kEach, [&](int64_t item) {
    for (int64_t i = item * kEach; i < std::min(count, (item + 1) * kEach); ++i) {
      const uint64_t x = mixed(key + static_cast<uint64_t>(i));
      const float unit = static_cast<float>(static_cast<int32_t>(x >> 32)) * 0x1.0p-31f;
      values[static_cast<size_t>(i)] = kLargest * unit;
    }
  });
}

// Matrices are random, vectors are ones.
void fill_values(Backend& backend, const model::Parameter& parameter, uint64_t key,
                 std::span<float> values) {
  if (parameter.is_matrix()) {
    fill_random_values(backend, key, values);
  } else {
    std::fill(values.begin(), values.end(), 1.0f);
  }
}

// `values` is reused.
void fill_bf16_parameter(Backend& backend, model::ModelWeights& weights, size_t index,
                         std::vector<float>& values) {
  const model::Parameter& parameter = weights.table()[index];
  const int64_t rows = parameter.num_rows();
  const int64_t cols = parameter.num_cols();
  const int64_t step = std::max<int64_t>(1, kSlice / cols);
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t end = std::min(rows, begin + step);
    const Scratch::Mark mark(backend.scratch());
    const TensorView slice = backend.scratch().take(DType::kBF16, {end - begin, cols});
    values.resize(static_cast<size_t>((end - begin) * cols));
    fill_values(backend, parameter, (index << 40) + static_cast<uint64_t>(begin * cols), values);
    ops::from_host(backend, values, slice);
    weights.write_rows(backend, index, begin, slice);
  }
}

void fill_random_weights(Backend& backend, model::ModelWeights& weights) {
  std::vector<float> values;
  for (size_t index = 0; index < weights.table().size(); ++index) {
    const model::Parameter& parameter = weights.table()[index];
    if (!parameter.held) continue;
    if (parameter.panel.is_narrow()) {
      fill_narrow_parameter(backend, weights, index);
    } else {
      fill_bf16_parameter(backend, weights, index, values);
    }
  }
}

}  // namespace

std::string narrow_form_names() {
  std::string names;
  for (int i = 1; i < kNumNarrowForms; ++i) {
    names += names.empty() ? "" : ", ";
    names += narrow_layout(static_cast<NarrowForm>(i)).name;
  }
  return names;
}

std::unique_ptr<engine::Engine> make_random_engine(
    std::unique_ptr<Backend> backend, const model::ModelConfig& config, DType dtype,
    const std::string& weights, const engine::EngineOptions& options,
    std::optional<model::LayerRange> part, model::WeightShare share,
    const model::TensorShare& tensor, const model::ExpertShare& expert) {
  model::LoadedModel made;
  made.config = config;
  made.weights = std::make_unique<model::ModelWeights>(
      *backend, config, dtype, nullptr, part, choose_weight_forms(*backend, config, dtype, weights),
      share, /*shared=*/nullptr, tensor, expert);
  fill_random_weights(*backend, *made.weights);
  return std::make_unique<engine::Engine>(std::move(backend), std::move(made), options);
}

std::vector<int32_t> random_tokens(int64_t count, int64_t vocab, uint64_t stream) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (size_t i = 0; i < tokens.size(); ++i) {
    const uint64_t number = mixed(stream * 1000003u + i + 1);
    tokens[i] = static_cast<int32_t>((number >> 33) % static_cast<uint64_t>(vocab));
  }
  return tokens;
}

std::vector<model::LoraModuleSpec> bench_modules(const model::ModelConfig& config) {
  constexpr int64_t kRank = 32;
  return model::make_adapter_specs(config, {"all-linear"}, kRank, 32.0);
}

std::string checked_random_weights(const std::string& weights, const std::string& method) {
  if (weights != "auto" && weights != "bf16")
    static_cast<void>(usable_weights(model::KeepWeights::kNarrow, method));
  return weights;
}

TrainingBatch random_batch(int64_t sequences, int64_t length, int64_t vocab,
                           api::AdapterSlot slot) {
  TrainingBatch out;
  for (int64_t s = 0; s < sequences; ++s) {
    const auto draw = [&](int64_t seed) {
      return random_tokens(length, vocab, static_cast<uint64_t>(seed));
    };
    out.data.push_back({.tokens = draw(s), .targets = draw(s + 100)});
  }
  out.batch.gradients =
      slot == api::AdapterSlot::kBase ? api::Gradients::kParameters : api::Gradients::kAdapters;
  for (const api::Datum& datum : out.data)
    out.batch.sequences.push_back({.datum = &datum, .slot = slot});
  return out;
}

}  // namespace strata::apps
