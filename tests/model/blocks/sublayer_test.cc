// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <regex>
#include <set>
#include <sstream>

#include "model/connectors/replace.h"
#include "model/pass/pass.h"
#include "model/weights/init.h"
#include "model/weights/load.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/elementwise.h"
#include "tests/model/blocks/sublayer_case.h"

namespace strata::testing {
namespace {

using Lengths = std::vector<int64_t>;

// A value goes through at most 16 products, norms and sums one behind the other, each of at most 64
// terms, whose fp32 roundings add up like a random walk: 16 sqrt(64) 2^-24 of the largest value.
constexpr double kTolerance = 16 * 8 * 0x1p-24;

// Sequences of a pass, and what goes in from either end.
struct Work {
  Lengths lengths;
  std::vector<int32_t> tokens;
  std::vector<float> x, add, d_out;  // [T, W]

  Work(const Lengths& of, int64_t width, uint32_t seed) : lengths(of) {
    const auto total = static_cast<size_t>(std::accumulate(of.begin(), of.end(), int64_t{0}));
    std::mt19937 random(seed);
    const auto draw = [&] { return static_cast<float>(random() % 4096) / 2048.0f - 1.0f; };
    for (size_t i = 0; i < total; ++i) tokens.push_back(static_cast<int32_t>(random() % kVocab));
    for (std::vector<float>* values : {&x, &add, &d_out}) {
      values->resize(total * static_cast<size_t>(width));
      std::generate(values->begin(), values->end(), draw);
    }
  }
  // Sequence i by itself.
  [[nodiscard]] Work alone(size_t i) const {
    Work one = *this;
    const auto begin = static_cast<size_t>(
        std::accumulate(lengths.begin(), lengths.begin() + static_cast<int64_t>(i), int64_t{0}));
    const auto count = static_cast<size_t>(lengths[i]);
    const size_t width = x.size() / tokens.size();
    const auto cut = [&](auto& values, size_t each) {
      values.erase(values.begin() + static_cast<int64_t>((begin + count) * each), values.end());
      values.erase(values.begin(), values.begin() + static_cast<int64_t>(begin * each));
    };
    one.lengths = {lengths[i]};
    cut(one.tokens, 1);
    for (std::vector<float>* values : {&one.x, &one.add, &one.d_out}) cut(*values, width);
    return one;
  }
};

struct Computed {
  std::vector<float> out, d_x;
};

// The model of one layer, and gradients that runs add to.
class OneLayer {
 public:
  explicit OneLayer(const SublayerCase& tested)
      : tested_(tested),
        loaded_(model::init_model(backend_, config_of(tested), DType::kF32, /*seed=*/5)),
        ropes_(backend_, loaded_.config.ropes) {
    ropes_.extend_to(64);
    std::mt19937 random(7);
    for (size_t i = 0; i < table().size(); ++i) draw(i, random);
    clear_gradients();
  }

  [[nodiscard]] int64_t width() const { return kWidth * tested_.streams; }
  [[nodiscard]] const std::vector<model::Parameter>& table() const {
    return loaded_.weights->table();
  }
  [[nodiscard]] static std::string short_name(const model::Parameter& parameter) {
    constexpr std::string_view kLayer = "model.layers.0.";
    const std::string& name = parameter.name;
    return name.starts_with(kLayer) ? name.substr(kLayer.size()) : name;
  }
  [[nodiscard]] Params params() {
    Params params;
    for (size_t i = 0; i < table().size(); ++i) {
      const std::vector<float> values = read(i);
      params[short_name(table()[i])] = Row(values.begin(), values.end());
    }
    return params;
  }
  void clear_gradients() {
    int64_t total = 0;
    for (const model::Parameter& parameter : table()) total += parameter.shape.num_elements();
    owned_ = Tensor(backend_.allocator(), DType::kF32, {total});
    gradients_ = {};
    int64_t next = 0;  // one behind the other, as an optimizer has them
    for (const model::Parameter& parameter : table()) {
      const TensorView own = owned_.view().part(next, parameter.shape);
      gradients_.d_weight.push_back(parameter.buffer ? TensorView() : own);
      next += parameter.shape.num_elements();
    }
  }
  [[nodiscard]] std::vector<float> gradient(size_t index) {
    return to_host(gradients_.d_weight[index]);
  }

  Computed run(const Work& work) {
    Flat flat(work);
    model::PassLists lists;
    const model::CacheLayout cache(loaded_.config, DType::kF32, 64);
    model::Pass pass{.backend = backend_,
                     .weights = *loaded_.weights,
                     .ropes = ropes_,
                     .tokens = work.tokens,
                     .positions = flat.positions,
                     .sequences = flat.sequences,
                     .rows = flat.rows,
                     .cache = cache,
                     .lists = lists,
                     .base_gradients = &gradients_};
    const Scratch::Mark mark(backend_.scratch());
    if (tested_.layer_input_width > 0) lists.shared.per_layer_inputs = take_layer_inputs(pass);
    return tested_.connector ? run_connector(pass, work) : run_block(pass, work);
  }

 private:
  struct Flat {
    std::vector<int32_t> positions;
    std::vector<model::PassSequence> sequences;
    model::RowGroups rows;
    explicit Flat(const Work& work) {
      for (const int64_t length : work.lengths) {
        const auto begin = std::ssize(positions);
        for (int64_t i = 0; i < length; ++i) positions.push_back(static_cast<int32_t>(i));
        sequences.push_back({.begin = begin, .end = begin + length, .kept = {}});
        rows.add_sequence(length, nullptr);
      }
    }
  };
  struct SavedMemory {
    alignas(64) std::array<std::byte, 4096> outer, inner;
  };

  static model::ModelConfig config_of(const SublayerCase& tested) {
    model::ModelConfig config;
    config.family = "test";
    config.vocab_size = kVocab;
    config.hidden_size = kWidth;
    config.initializer_range = 0.4;
    const model::Connector replace(model::kReplace, model::ReplaceConfig());
    config.layers = {{{tested.connector.value_or(replace), tested.block}}};
    for (const int64_t dim : tested.rope_dims) {
      config.ropes.push_back({.config = {.theta = kTheta}, .dim = dim});
    }
    config.ropes.insert(config.ropes.end(), tested.more_ropes.begin(), tested.more_ropes.end());
    return config;
  }

  // Vectors too are drawn, about what they are in a fresh model; whole numbers stay.
  void draw(size_t index, std::mt19937& random) {
    const model::Parameter& parameter = table()[index];
    if (parameter.is_matrix() || parameter.row == nullptr || parameter.row->integers > 0) return;
    std::vector<float> values = read(index);
    for (float& value : values) value += static_cast<float>(random() % 1024) / 1024.0f - 0.5f;
    const Tensor rows(backend_.allocator(), DType::kF32, {1, parameter.num_cols()});
    ops::from_host(backend_, values, rows.view());
    loaded_.weights->write_rows(backend_, index, 0, rows.view());
  }
  std::vector<float> read(size_t index) {
    const model::Parameter& parameter = table()[index];
    const Tensor rows(backend_.allocator(), DType::kF32,
                      {parameter.num_rows(), parameter.num_cols()});
    loaded_.weights->read_rows(backend_, index, 0, rows.view());
    return to_host(rows.view());
  }
  std::vector<float> to_host(TensorView x) {
    std::vector<float> values(static_cast<size_t>(x.shape.num_elements()));
    ops::to_host(backend_, x, values);
    return values;
  }
  [[nodiscard]] TensorView take_layer_inputs(const model::Pass& pass) const {
    const int64_t width = tested_.layer_input_width;
    std::vector<float> values;
    for (const int32_t token : pass.tokens) {
      for (int64_t i = 0; i < width; ++i)
        values.push_back(static_cast<float>(layer_input(token, static_cast<size_t>(i))));
    }
    const TensorView y = pass.take(DType::kF32, {pass.num_tokens(), width});
    ops::from_host(pass.backend, values, y);
    return y;
  }
  TensorView take(model::Pass& pass, const std::vector<float>& values) {
    const TensorView y = pass.take(DType::kF32, {pass.num_tokens(), width()});
    ops::from_host(backend_, values, y);
    return y;
  }

  Computed run_block(model::Pass& pass, const Work& work) {
    const model::SublayerContext& at = loaded_.weights->layer(0)[0];
    SavedMemory saved;
    start(pass, at, saved);
    const TensorView x = take(pass, work.x);
    const TensorView out = pass.take(DType::kF32, x.shape);
    const TensorView add = tested_.adds ? take(pass, work.add) : TensorView();
    at.block->forward(pass, at.inner, saved.inner.data(), x, {.add = add, .out = out});
    const TensorView d_x = pass.take(DType::kF32, x.shape);
    at.block->backward(pass, at.inner, saved.inner.data(), x, take(pass, work.d_out), d_x);
    return {.out = to_host(out), .d_x = to_host(d_x)};
  }

  Computed run_connector(model::Pass& pass, const Work& work) {
    const model::SublayerContext& at = loaded_.weights->layer(0)[0];
    SavedMemory memory;
    start(pass, at, memory);
    const model::SublayerSaved saved = {.outer = memory.outer.data(), .inner = memory.inner.data()};
    const TensorView x = take(pass, work.x);
    const TensorView out = pass.take(DType::kF32, x.shape);
    at.connector->forward(pass, at, saved, x, out);
    const TensorView d = take(pass, work.d_out);
    at.connector->backward(pass, at, saved, x, d);
    return {.out = to_host(out), .d_x = to_host(d)};
  }

  void start(model::Pass& pass, const model::SublayerContext& at, SavedMemory& saved) {
    ASSERT_LE(at.block->saved_bytes, saved.inner.size());
    ASSERT_LE(at.connector->saved_bytes, saved.outer.size());
    at.block->construct(saved.inner.data());
    at.block->allocate_always_kept(pass, at.inner, saved.inner.data());
    if (tested_.connector) {
      at.connector->construct(saved.outer.data());
      at.connector->allocate_saved(pass, at, saved.outer.data());
    }
    at.block->allocate_saved(pass, at.inner, saved.inner.data());
  }

  const SublayerCase& tested_;
  CpuBackend backend_{choose_cpu_path(), 2};
  model::LoadedModel loaded_;
  model::RopeTables ropes_;
  Tensor owned_;
  model::BaseGradients gradients_;
};

// One sequence's rows of a flat array.
Rows rows_of(const std::vector<float>& flat, size_t count) {
  Rows rows;
  const auto width = static_cast<int64_t>(flat.size() / count);
  for (auto at = flat.begin(); at != flat.end(); at += width) rows.emplace_back(at, at + width);
  return rows;
}

// sum(d_out out) of the reference, by sequence.
double loss(const Reference& reference, const Params& params, const Rows& x, const Work& alone) {
  const Rows out = reference({.params = params, .x = x, .tokens = alone.tokens});
  double sum = 0.0;
  size_t i = 0;
  for (const Row& row : out) {
    for (const double value : row) sum += value * static_cast<double>(alone.d_out[i++]);
  }
  EXPECT_EQ(i, alone.d_out.size());
  return sum;
}

// By central differences; f is a function of `value`, which is left as it was.
template <typename F>
double derivative(double& value, const F& f) {
  constexpr double kStep = 1e-5;
  const double before = value;
  value = before + kStep;
  const double above = f();
  value = before - kStep;
  const double below = f();
  value = before;
  return (above - below) / (2.0 * kStep);
}

void expect_near(const std::vector<float>& got, const Row& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double most = 0.0;
  for (const double value : want) most = std::max(most, std::abs(value));
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(static_cast<double>(got[i]), want[i], kTolerance * std::max(most, 1.0))
        << what << ", element " << i;
  }
}

const Lengths kLengths = {13, 1, 6};

// The row whose name the suite has is the one that is tested.
TEST_P(SublayerAlone, IsInstantiatedUnderItsName) {
  const std::string suite = ::testing::UnitTest::GetInstance()->current_test_suite()->name();
  const SublayerCase& tested = GetParam();
  const std::string_view row =
      tested.connector ? tested.connector->ops().name : tested.block.ops().name;
  EXPECT_EQ(suite, std::string(row) + "/SublayerAlone");
  EXPECT_EQ(tested.block.ops().find_config_fault(tested.block.config()), "");
}

TEST_P(SublayerAlone, FollowsItsFormula) {
  OneLayer layer(GetParam());
  const Work work(kLengths, layer.width(), 1);
  const Params params = layer.params();
  Row want;
  for (size_t s = 0; s < work.lengths.size(); ++s) {
    const Work alone = work.alone(s);
    const Rows x = rows_of(alone.x, alone.tokens.size());
    for (const Row& row : GetParam().reference({params, x, alone.tokens})) {
      want.insert(want.end(), row.begin(), row.end());
    }
  }
  if (GetParam().adds && !GetParam().connector) {
    for (size_t i = 0; i < want.size(); ++i) want[i] += static_cast<double>(work.add[i]);
  }
  expect_near(layer.run(work).out, want, "out");
}

TEST_P(SublayerAlone, HasTheGradientsOfItsFormula) {
  OneLayer layer(GetParam());
  const Work work(kLengths, layer.width(), 2);
  const Reference& reference = GetParam().reference;
  Params params = layer.params();
  const Computed got = layer.run(work);
  std::vector<Work> alone;
  std::vector<Rows> x;
  Row want;
  for (size_t s = 0; s < work.lengths.size(); ++s) {
    alone.push_back(work.alone(s));
    x.push_back(rows_of(alone[s].x, alone[s].tokens.size()));
    for (Row& row : x[s]) {
      for (double& value : row) {
        want.push_back(derivative(value, [&] { return loss(reference, params, x[s], alone[s]); }));
      }
    }
  }
  expect_near(got.d_x, want, "d_x");
  for (size_t i = 0; i < layer.table().size(); ++i) {
    if (layer.table()[i].buffer) continue;
    const std::string name = OneLayer::short_name(layer.table()[i]);
    want.clear();
    for (double& value : params.at(name)) {
      want.push_back(derivative(value, [&] {
        double sum = 0.0;
        for (size_t s = 0; s < alone.size(); ++s) sum += loss(reference, params, x[s], alone[s]);
        return sum;
      }));
    }
    expect_near(layer.gradient(i), want, name);
  }
}

// Of one sequence among others every bit is what it is by itself; and parameters' gradients are
// those of one sequence after the other.
TEST_P(SublayerAlone, PackedGivesTheBitsOfEachSequenceByItself) {
  OneLayer packed(GetParam());
  OneLayer separate(GetParam());
  const Work work(kLengths, packed.width(), 3);
  const Computed got = packed.run(work);
  Computed want;
  for (size_t s = 0; s < work.lengths.size(); ++s) {
    const Computed one = separate.run(work.alone(s));
    want.out.insert(want.out.end(), one.out.begin(), one.out.end());
    want.d_x.insert(want.d_x.end(), one.d_x.begin(), one.d_x.end());
  }
  EXPECT_EQ(got.out, want.out);
  EXPECT_EQ(got.d_x, want.d_x);
  for (size_t i = 0; i < packed.table().size(); ++i) {
    if (packed.table()[i].buffer) continue;
    EXPECT_EQ(packed.gradient(i), separate.gradient(i)) << packed.table()[i].name;
  }
}

// Every row of a block or a connector in src/model.
std::set<std::string> rows_in_source() {
  const std::regex row(R"re((?:block|connector)_ops<\w+>\("(\w+)"\))re");
  std::set<std::string> names;
  const std::string root = std::string(STRATA_SOURCE_DIR) + "/src/model";
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    if (entry.path().extension() != ".cc") continue;
    std::ostringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    const std::string source = text.str();
    for (std::sregex_iterator at(source.begin(), source.end(), row), end; at != end; ++at) {
      names.insert((*at)[1]);
    }
  }
  return names;
}

TEST(Sublayers, EveryRowHasATestAlone) {
  std::set<std::string> tested;
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const std::string name = all.GetTestSuite(i)->name();
    const size_t slash = name.find("/SublayerAlone");
    if (slash != std::string::npos) tested.insert(name.substr(0, slash));
  }
  const std::set<std::string> rows = rows_in_source();
  EXPECT_GE(rows.size(), 11u);
  EXPECT_EQ(tested, rows) << "a test for each in tests/model/blocks or tests/model/connectors";
}

}  // namespace
}  // namespace strata::testing
