// SPDX-License-Identifier: Apache-2.0
// Mistakes that others made in Qwen3.5 (docs/dev/traps.md), each planted by changing the files or
// the request so that our program computes what the mistake would: the golden must miss its limit
// by more than a hundred times. Those that no file can express are planted in the definition
// (tools/golden/golden_qwen35_definition.py) or in the ops' tests.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "tests/golden/altered_golden.h"
#include "tests/golden/compare.h"

namespace strata::golden {
namespace {

using Order = std::vector<int64_t>;

constexpr double kVisible = 100;

Order identity(int64_t size) {
  Order order(static_cast<size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

// Appends begin .. begin + count - 1.
void append(Order& order, int64_t begin, int64_t count) {
  for (int64_t i = 0; i < count; ++i) order.push_back(begin + i);
}

// A block of `width` rows for each of `blocks`.
Order expand(const Order& blocks, int64_t width) {
  Order order;
  for (const int64_t block : blocks) append(order, block * width, width);
  return order;
}

void add(AlteredGolden& g, const std::string& suffix, float what) {
  g.each(suffix, [&](Tensor& t) {
    for (float& value : t.values) value += what;
  });
}

void map(AlteredGolden& g, const std::string& suffix, float (*change)(float)) {
  g.each(suffix, [&](Tensor& t) {
    for (float& value : t.values) value = change(value);
  });
}

float rounded_to_bf16(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, 4);
  bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
  std::memcpy(&value, &bits, 4);
  return value;
}

struct Linear {
  int64_t key_heads, value_heads, key_dim, value_dim;
  explicit Linear(const AlteredGolden& g)
      : key_heads(g.number("linear_num_key_heads")),
        value_heads(g.number("linear_num_value_heads")),
        key_dim(g.number("linear_key_head_dim")),
        value_dim(g.number("linear_value_head_dim")) {}
  [[nodiscard]] int64_t keys() const { return key_heads * key_dim; }
  [[nodiscard]] int64_t values() const { return value_heads * value_dim; }
};

// in_proj_qkv and what the convolution has for its outputs.
void permute_qkv(AlteredGolden& g, const Order& order) {
  g.permute_rows("in_proj_qkv", order);
  g.permute_rows("conv1d", order);
}

// Dimensions of each head of attention's queries and keys, the gates staying where they are.
void permute_head(AlteredGolden& g, const Order& dims) {
  const auto width = static_cast<int64_t>(dims.size());
  const auto of_heads = [&](int64_t heads, int64_t stride) {
    Order order;
    for (int64_t h = 0; h < heads; ++h) {
      for (const int64_t d : dims) order.push_back(h * stride + d);
      append(order, h * stride + width, stride - width);
    }
    return order;
  };
  g.permute_rows("q_proj", of_heads(g.number("num_attention_heads"), 2 * width));
  g.permute_rows("k_proj", of_heads(g.number("num_key_value_heads"), width));
  g.permute_rows("q_norm", dims);
  g.permute_rows("k_norm", dims);
}

int64_t rotary_dim(const AlteredGolden& g) {
  const double part =
      g.config.at("rope_parameters").at("partial_rotary_factor").to_number<double>();
  return static_cast<int64_t>(static_cast<double>(g.number("head_dim")) * part);
}

boost::json::object& rope(AlteredGolden& g) { return g.config.at("rope_parameters").as_object(); }

// Row i of what a split of q_proj's rows in two halves takes for row i of [query | gate] by heads.
Order halves_of_whole(const AlteredGolden& g) {
  const int64_t heads = g.number("num_attention_heads");
  const int64_t width = g.number("head_dim");
  Order order;
  for (int64_t h = 0; h < heads; ++h) {
    append(order, h * width, width);
    append(order, (heads + h) * width, width);
  }
  return order;
}

void plant_norms_by_w(AlteredGolden& g) {
  for (const char* name : {"layernorm.weight", "model.norm.weight", "q_norm.weight"}) {
    add(g, name, -1);
  }
  add(g, "k_norm.weight", -1);
}

void plant_head_norms_by_w(AlteredGolden& g) {
  add(g, "q_norm.weight", -1);
  add(g, "k_norm.weight", -1);
}

void plant_last_of_head_rotated(AlteredGolden& g) {
  const int64_t width = g.number("head_dim");
  const int64_t rotated = rotary_dim(g);
  Order order;
  append(order, width - rotated, rotated);
  append(order, 0, width - rotated);
  permute_head(g, order);
}

void plant_interleaved_pairs(AlteredGolden& g) {
  Order order = identity(g.number("head_dim"));
  const int64_t half = rotary_dim(g) / 2;
  for (int64_t i = 0; i < half; ++i) {
    order[static_cast<size_t>(i)] = 2 * i;
    order[static_cast<size_t>(half + i)] = 2 * i + 1;
  }
  permute_head(g, order);
}

// theta^(-2 i / head_dim) instead of theta^(-2 i / rotary_dim).
void plant_frequencies_of_whole_head(AlteredGolden& g) {
  const double part =
      static_cast<double>(rotary_dim(g)) / static_cast<double>(g.number("head_dim"));
  rope(g)["rope_theta"] = std::pow(rope(g).at("rope_theta").to_number<double>(), part);
}

void plant_q_proj_split_in_adapters(AlteredGolden& g) {
  const Order order = halves_of_whole(g);
  g.each_adapters("q_proj.lora_B.weight", [&](Tensor& t) { permute_rows(t, order); });
}

void plant_gate_before_query(AlteredGolden& g) {
  Order order;
  const int64_t width = g.number("head_dim");
  for (int64_t h = 0; h < g.number("num_attention_heads"); ++h) {
    append(order, (2 * h + 1) * width, width);
    append(order, 2 * h * width, width);
  }
  g.permute_rows("q_proj", order);
}

// sigmoid(0) = 1 / 2.
void plant_no_gate_of_attention(AlteredGolden& g) {
  const int64_t width = g.number("head_dim");
  for (int64_t h = 0; h < g.number("num_attention_heads"); ++h) {
    g.scale_rows("q_proj", (2 * h + 1) * width, (2 * h + 2) * width, 0);
  }
  g.scale_rows("o_proj", 0, g.number("hidden_size"), 2);
}

// Moves every tap of the convolution by `steps` towards the newest, as far as there are any.
void move_taps(AlteredGolden& g, int64_t steps) {
  g.each("conv1d.weight", [&](Tensor& t) {
    const int64_t taps = t.dims[2];
    const Tensor from = t;
    for (int64_t i = 0; i < t.dims[0] * taps; ++i) {
      const int64_t tap = i % taps - steps;
      t.values[static_cast<size_t>(i)] =
          tap < 0 ? 0 : from.values[static_cast<size_t>(i - i % taps + tap)];
    }
  });
}

void plant_convolution_back_to_front(AlteredGolden& g) {
  g.each("conv1d.weight", [](Tensor& t) {
    for (auto row = t.values.begin(); row != t.values.end(); row += t.dims[2]) {
      std::reverse(row, row + t.dims[2]);
    }
  });
}

void plant_window_one_short(AlteredGolden& g) {
  g.each("conv1d.weight", [](Tensor& t) {
    for (size_t i = 0; i < t.values.size(); i += static_cast<size_t>(t.dims[2])) t.values[i] = 0;
  });
}

// -exp(A') is A where A is negative; where it is not, e^g is capped at 1.
void plant_a_log_without_exp(AlteredGolden& g) {
  map(g, "A_log", [](float a) { return a < 0 ? std::log(-a) : -100.0f; });
}

void plant_q_and_k_exchanged(AlteredGolden& g) {
  const Linear l(g);
  Order order;
  append(order, l.keys(), l.keys());
  append(order, 0, l.keys());
  append(order, 2 * l.keys(), l.values());
  permute_qkv(g, order);
}

void plant_values_first(AlteredGolden& g) {
  const Linear l(g);
  Order order;
  append(order, l.values(), 2 * l.keys());
  append(order, 0, l.values());
  permute_qkv(g, order);
}

// Qwen3-Next's order of the projection's rows: [q | k | v] of a key head after those of another.
void plant_rows_by_key_head(AlteredGolden& g) {
  const Linear l(g);
  const int64_t values = l.values() / l.key_heads;
  const int64_t stride = 2 * l.key_dim + values;
  Order order;
  for (int64_t h = 0; h < l.key_heads; ++h) append(order, h * stride, l.key_dim);
  for (int64_t h = 0; h < l.key_heads; ++h) append(order, h * stride + l.key_dim, l.key_dim);
  for (int64_t h = 0; h < l.key_heads; ++h) append(order, h * stride + 2 * l.key_dim, values);
  g.permute_rows("in_proj_qkv", order);
}

// Value head h with key head h % Kh instead of h / (Vh / Kh).
void plant_key_heads_tiled(AlteredGolden& g) {
  const Linear l(g);
  Order heads;
  for (int64_t k = 0; k < l.key_heads; ++k) {
    for (int64_t h = k; h < l.value_heads; h += l.key_heads) heads.push_back(h);
  }
  const Order values = expand(heads, l.value_dim);
  Order qkv = identity(2 * l.keys());
  for (const int64_t row : values) qkv.push_back(2 * l.keys() + row);
  permute_qkv(g, qkv);
  g.permute_rows("in_proj_z", values);
  g.permute_columns("out_proj", values);
  g.permute_rows("in_proj_a", heads);
  g.permute_rows("in_proj_b", heads);
  for (const char* name : {"A_log", "dt_bias"}) {
    g.each(name, [&](Tensor& t) { permute_rows(t, heads); });
  }
}

// An adapter that has in_proj_qkv without in_proj_z, taken for one that has neither.
void plant_qkv_dropped_without_z(AlteredGolden& g) {
  for (Tensors& adapter : g.adapters) {
    const bool has_z = std::any_of(adapter.begin(), adapter.end(), [](const auto& item) {
      return item.first.find("in_proj_z") != std::string::npos;
    });
    if (has_z) continue;
    for (auto& [name, tensor] : adapter) {
      if (name.ends_with("in_proj_qkv.lora_B.weight")) {
        std::fill(tensor.values.begin(), tensor.values.end(), 0.0f);
      }
    }
  }
}

void plant_no_shared_gate(AlteredGolden& g) {
  map(g, "shared_expert_gate.weight", [](float) { return 0.0f; });
  map(g, "shared_expert.down_proj.weight", [](float value) { return 2 * value; });
}

// Of the matrix that multi-token prediction reads by: the hidden state's half before the token's.
void plant_hidden_before_embedding(AlteredGolden& g) {
  const int64_t width = g.number("hidden_size");
  Order order;
  append(order, width, width);
  append(order, 0, width);
  g.permute_columns("fc", order);
}

void plant_mtp_norms_by_w(AlteredGolden& g) {
  add(g, "pre_fc_norm_embedding.weight", -1);
  add(g, "pre_fc_norm_hidden.weight", -1);
}

struct Trap {
  const char* name;
  const char* golden;
  void (*plant)(AlteredGolden&);
  bool base_only = false;  // it is planted in the base alone: rows with an adapter do not count
  const char* tensor = "logits";
};
void PrintTo(const Trap& trap, std::ostream* out) { *out << trap.name << " in " << trap.golden; }

constexpr const char* kDense = "qwen3_5/main";
constexpr const char* kEqual = "qwen3_5_equal/main";
constexpr const char* kMoe = "qwen3_5_moe/main";
constexpr const char* kMtp = "qwen3_5_mtp/main";

const Trap kTraps[] = {
    {"NormsByW", kDense, plant_norms_by_w},
    {"NormsOfQAndKByW", kDense, plant_head_norms_by_w},
    {"GatedNormByOnePlusW", kDense, [](auto& g) { add(g, "linear_attn.norm.weight", 1); }},
    {"EpsilonOfTheClass", kEqual, [](auto& g) { g.config["rms_norm_eps"] = 1e-6; }},
    {"RotationOfTheWholeHead", kDense, [](auto& g) { rope(g)["partial_rotary_factor"] = 1.0; }},
    {"LastOfTheHeadRotated", kDense, plant_last_of_head_rotated},
    {"InterleavedPairs", kDense, plant_interleaved_pairs},
    {"FrequenciesOfTheWholeHead", kDense, plant_frequencies_of_whole_head},
    {"QProjSplitAsAWhole", kDense, [](auto& g) { g.permute_rows("q_proj", halves_of_whole(g)); }},
    {"QProjSplitAsAWholeInAdapters", kDense, plant_q_proj_split_in_adapters},
    {"GateBeforeQuery", kDense, plant_gate_before_query},
    {"NoGateOfAttention", kDense, plant_no_gate_of_attention},
    {"ConvolutionBackToFront", kDense, plant_convolution_back_to_front},
    {"ConvolutionOneStepAhead", kDense, [](auto& g) { move_taps(g, 1); }},
    {"WindowOneShort", kDense, plant_window_one_short},
    {"WindowOneShortOfThree", kEqual, plant_window_one_short},
    {"ALogWithoutExp", kDense, plant_a_log_without_exp},
    {"ALogInBf16", kDense, [](auto& g) { map(g, "A_log", rounded_to_bf16); }},
    {"GatedNormInBf16", kDense,
     [](auto& g) { map(g, "linear_attn.norm.weight", rounded_to_bf16); }},
    {"NoDtBias", kDense, [](auto& g) { map(g, "dt_bias", [](float) { return 0.0f; }); }},
    {"AAndBExchanged", kDense, [](auto& g) { g.exchange("in_proj_a", "in_proj_b"); }},
    {"QAndKExchanged", kDense, plant_q_and_k_exchanged},
    {"ValuesFirst", kDense, plant_values_first},
    {"RowsByKeyHead", kDense, plant_rows_by_key_head},
    {"KeyHeadsTiled", kDense, plant_key_heads_tiled},
    {"QkvDroppedWithoutZ", kDense, plant_qkv_dropped_without_z},
    {"NoSharedExpert", kMoe,
     [](auto& g) { map(g, "shared_expert.down_proj.weight", [](float) { return 0.0f; }); }, true},
    {"NoGateOfTheSharedExpert", kMoe, plant_no_shared_gate, true},
    {"UpBeforeGateInExperts", kMoe, [](auto& g) { g.exchange("gate_proj", "up_proj"); }, true},
    {"HiddenBeforeEmbeddingInMtp", kMtp, plant_hidden_before_embedding, false, "mtp_logits"},
    {"MtpNormsByW", kMtp, plant_mtp_norms_by_w, false, "mtp_logits"},
    {"MtpsFinalNormByW", kMtp, [](auto& g) { add(g, "mtp.norm.weight", -1); }, false, "mtp_logits"},
};

// Rows [begin, end) of one layer of [.., T, D].
void append_rows(const Tensor& from, int64_t layer, int64_t begin, int64_t end, Tensor& to) {
  const int64_t width = from.dims.back();
  const int64_t tokens = from.dims[from.dims.size() - 2];
  const auto first = from.values.begin() + (layer * tokens + begin) * width;
  to.values.insert(to.values.end(), first, first + (end - begin) * width);
}

// How many limits apart.
double limits(const AlteredGolden& g, const std::string& name, const Tensor& got,
              const Tensor& want) {
  const double ratio = relative_l2(got, want) / limit_of(name, read_json(g.row.noise), false);
  testing::Test::RecordProperty("limits", std::to_string(ratio));
  return ratio;
}

int64_t num_tokens(const boost::json::value& sequence) {
  return static_cast<int64_t>(sequence.at("tokens").as_array().size());
}

Tensor base_rows(const AlteredGolden& g, const Tensor& logits) {
  Tensor rows;
  int64_t begin = 0;
  for (const auto& sequence : g.request.at("sequences").as_array()) {
    const int64_t end = begin + num_tokens(sequence);
    if (!sequence.as_object().contains("adapter")) append_rows(logits, 0, begin, end, rows);
    begin = end;
  }
  return rows;
}

class Qwen35Traps : public testing::TestWithParam<Trap> {};

TEST_P(Qwen35Traps, ShowsWhenPlanted) {
  if (!forced_path_exists()) GTEST_SKIP() << "this CPU lacks the forced path";
  const Trap& trap = GetParam();
  AlteredGolden g(trap.golden);
  const Tensor want = read_tensors(g.row.expected).at(trap.tensor);
  const auto apart = [&] {
    const Tensor got = g.run()[trap.tensor];
    return trap.base_only ? limits(g, trap.tensor, base_rows(g, got), base_rows(g, want))
                          : limits(g, trap.tensor, got, want);
  };
  EXPECT_LE(apart(), 1) << "not the golden even before it is altered";
  trap.plant(g);
  EXPECT_FALSE(apart() <= kVisible);
}

INSTANTIATE_TEST_SUITE_P(All, Qwen35Traps, testing::ValuesIn(kTraps),
                         [](const auto& info) { return info.param.name; });

// The hidden states behind the layers before the first of attention, which a request with other
// borders between sequences changes through states and windows alone.
constexpr int64_t kFirstFull = 3;

// Two sequences of one adapter run as one: state and window reach the second. The first has 64
// tokens, so that the chunks of the second begin where they would.
TEST(Qwen35Borders, AStateThatLeaksIntoTheNextSequenceShows) {
  if (!forced_path_exists()) GTEST_SKIP() << "this CPU lacks the forced path";
  AlteredGolden g(kDense);
  const Tensor want = read_tensors(g.row.expected).at("hidden_states");
  auto& sequences = g.request.at("sequences").as_array();
  constexpr size_t kFirst = 2, kSecond = 4;
  ASSERT_EQ(sequences[kFirst].at("adapter"), sequences[kSecond].at("adapter"));
  ASSERT_EQ(num_tokens(sequences[kFirst]), 64);
  int64_t begin = 0;
  for (size_t i = 0; i < kSecond; ++i) begin += num_tokens(sequences[i]);
  const int64_t count = num_tokens(sequences[kSecond]);
  const auto join = [&](const char* key) {
    boost::json::array tokens = sequences[kFirst].at(key).as_array();
    for (const auto& token : sequences[kSecond].at(key).as_array()) tokens.push_back(token);
    return tokens;
  };
  const boost::json::object joined{{"tokens", join("tokens")},
                                   {"targets", join("targets")},
                                   {"adapter", sequences[kFirst].at("adapter")}};
  sequences = {joined};
  const Tensor got = g.run()["hidden_states"];
  Tensor got_rows, want_rows;
  for (int64_t layer = 1; layer <= kFirstFull; ++layer) {
    append_rows(got, layer, 64, 64 + count, got_rows);
    append_rows(want, layer, begin, begin + count, want_rows);
  }
  EXPECT_FALSE(limits(g, "hidden_states", got_rows, want_rows) <= kVisible);
}

// A sequence cut at every 64 tokens: what a state that starts anew with each chunk would give.
TEST(Qwen35Borders, AStateThatStartsAnewWithEachChunkShows) {
  if (!forced_path_exists()) GTEST_SKIP() << "this CPU lacks the forced path";
  AlteredGolden g(kDense);
  const Tensor want = read_tensors(g.row.expected).at("hidden_states");
  auto& sequences = g.request.at("sequences").as_array();
  const boost::json::object whole = sequences[0].as_object();
  const int64_t count = num_tokens(whole);
  ASSERT_EQ(count, 300);
  sequences.clear();
  for (int64_t begin = 0; begin < count; begin += 64) {
    const auto part = [&](const char* key) {
      const auto& all = whole.at(key).as_array();
      return boost::json::array(all.begin() + begin, all.begin() + std::min(count, begin + 64));
    };
    sequences.push_back(boost::json::object{{"tokens", part("tokens")},
                                            {"targets", part("targets")},
                                            {"adapter", whole.at("adapter")}});
  }
  const Tensor got = g.run()["hidden_states"];
  const auto rows = [&](const Tensor& hidden, int64_t begin, int64_t end) {
    Tensor taken;
    for (int64_t layer = 1; layer <= kFirstFull; ++layer) {
      append_rows(hidden, layer, begin, end, taken);
    }
    return taken;
  };
  EXPECT_LE(limits(g, "hidden_states", rows(got, 0, 64), rows(want, 0, 64)), 1);
  EXPECT_FALSE(limits(g, "hidden_states", rows(got, 64, count), rows(want, 64, count)) <= kVisible);
}

}  // namespace
}  // namespace strata::golden
