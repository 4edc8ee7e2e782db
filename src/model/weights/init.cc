// SPDX-License-Identifier: Apache-2.0
#include "model/weights/init.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <tuple>

#include "base/rng.h"
#include "model/weights/slices.h"
#include "ops/elementwise.h"

namespace strata::model {
namespace {

double draw_value(const Parameter& parameter, const ModelConfig& config, const Counter& random,
                  uint64_t element) {
  switch (parameter.draw) {
    case ParamDraw::kConstant:
      return static_cast<double>(parameter.init);
    case ParamDraw::kNormal:
      return config.initializer_range * random.normal(element);
    case ParamDraw::kLogUniform16:
      return std::log(0.01 + (16.0 - 0.01) * random.uniform(element));
  }
  return 0.0;
}

struct Number {
  int64_t times_used = 0;
  uint32_t rank = 0;  // among those used as often
  int64_t value = 0;
};

// The least used numbers come first, as many as a row has.
void draw_order(const Counter& random, int64_t row, int64_t row_size,
                std::vector<Number>& numbers) {
  for (Number& number : numbers) {
    number.rank = random.words(static_cast<uint64_t>(row * std::ssize(numbers) + number.value))[0];
  }
  std::partial_sort(numbers.begin(), numbers.begin() + row_size, numbers.end(),
                    [](const Number& a, const Number& b) {
                      return std::tie(a.times_used, a.rank, a.value) <
                             std::tie(b.times_used, b.rank, b.value);
                    });
}

// Rows of different numbers below `limit`, each number as often as any other, but for one: tokens
// of about the same rank among all, and so of about the same frequency, are spread over all.
std::vector<float> draw_evenly_used_numbers(const Counter& random, int64_t num_rows,
                                            int64_t row_size, int64_t limit) {
  std::vector<Number> numbers(static_cast<size_t>(limit));
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i].value = static_cast<int64_t>(i);
  std::vector<float> values;
  for (int64_t row = 0; row < num_rows; ++row) {
    draw_order(random, row, row_size, numbers);
    for (int64_t i = 0; i < row_size; ++i) {
      Number& number = numbers[static_cast<size_t>(i)];
      values.push_back(static_cast<float>(number.value));
      ++number.times_used;
    }
  }
  return values;
}

void write_host_rows(Backend& backend, std::span<const float> values, const Shape& shape,
                     ModelWeights& weights, size_t index, int64_t first_row) {
  const Scratch::Mark mark(backend.scratch());
  const TensorView rows = backend.scratch().take(DType::kF32, shape);
  ops::from_host(backend, values, rows);
  weights.write_rows(backend, index, first_row, rows);
}

void draw_integers(Backend& backend, const Counter& random, ModelWeights& weights, size_t index) {
  const Parameter& parameter = weights.table()[index];
  const int64_t row_size = parameter.shape[parameter.shape.rank() - 1];
  const std::vector<float> values = draw_evenly_used_numbers(
      random, parameter.num_cols() / row_size, row_size, parameter.row->integers);
  write_host_rows(backend, values, {1, parameter.num_cols()}, weights, index, 0);
}

// Elements from `first` on, which threads share.
void draw_slice(Backend& backend, const Parameter& parameter, const ModelConfig& config,
                const Counter& random, int64_t first, std::span<float> values) {
  constexpr int64_t kEach = 1 << 16;
  const int64_t count = std::ssize(values);
  backend.run_on_host((count + kEach - 1) / kEach, [&](int64_t item) {
    for (int64_t i = item * kEach; i < std::min(count, (item + 1) * kEach); ++i) {
      const auto element = static_cast<uint64_t>(first + i);
      values[static_cast<size_t>(i)] =
          static_cast<float>(draw_value(parameter, config, random, element));
    }
  });
}

void draw_parameter(Backend& backend, const ModelConfig& config, const Counter& random,
                    ModelWeights& weights, size_t index) {
  const Parameter& parameter = weights.table()[index];
  std::vector<float> values;
  for_each_slice(parameter, [&](int64_t begin, int64_t end, int64_t cols) {
    values.resize(static_cast<size_t>((end - begin) * cols));
    // By their places in the tensor, of which there may be other parameters.
    for_each_stored_run(parameter, begin, end, [&](int64_t first, int64_t at, int64_t count) {
      draw_slice(backend, parameter, config, random, at * cols,
                 std::span(values).subspan(static_cast<size_t>((first - begin) * cols),
                                           static_cast<size_t>(count * cols)));
    });
    write_host_rows(backend, values, {end - begin, cols}, weights, index, begin);
  });
}

}  // namespace

LoadedModel init_model(Backend& backend, const ModelConfig& config, DType compute_dtype,
                       uint64_t seed, std::optional<LayerRange> part, const WeightShare& share,
                       const TensorShare& tensor, const ExpertShare& expert) {
  LoadedModel model;
  model.config = config;
  model.weights = std::make_unique<ModelWeights>(backend, config, compute_dtype, nullptr, part,
                                                 WeightForms(), share, nullptr, tensor, expert);
  for (size_t index = 0; index < model.weights->table().size(); ++index) {
    const Parameter& parameter = model.weights->table()[index];
    if (!parameter.held) continue;
    const Counter random{.seed = seed,
                         .stream = hash_name(parameter.name.data(), parameter.name.size())};
    if (parameter.is_integers()) {
      draw_integers(backend, random, *model.weights, index);
    } else {
      draw_parameter(backend, config, random, *model.weights, index);
    }
  }
  backend.scratch().book(0, 0);  // what was drawn through is no pass's
  return model;
}

}  // namespace strata::model
