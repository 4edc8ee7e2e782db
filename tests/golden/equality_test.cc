// SPDX-License-Identifier: Apache-2.0
// What must not change a bit: each golden's request rerun with recompute, other numbers of threads,
// its sequences alone, the base without adapters, an adapter without the others, samples alone and
// their logprobs by the trainer's forward pass. f32 and bf16.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>

#include "tests/golden/probe_run.h"

namespace strata::golden {
namespace {

using boost::json::array;
using boost::json::object;
using boost::json::value;

struct EqualityCase {
  GoldenRow golden;
  std::string dtype;
};

// For the lines that name a failure.
void PrintTo(const EqualityCase& c, std::ostream* out) { *out << c.golden.name << " " << c.dtype; }

// Rows [begin, end) of a tensor whose axis `axis` counts tokens; the axes before it are kept whole.
Tensor take_rows(const Tensor& tensor, size_t axis, int64_t begin, int64_t end) {
  int64_t outer = 1, inner = 1;
  for (size_t i = 0; i < axis; ++i) outer *= tensor.dims[i];
  for (size_t i = axis + 1; i < tensor.dims.size(); ++i) inner *= tensor.dims[i];
  Tensor rows{.dims = tensor.dims, .values = {}};
  rows.dims[axis] = end - begin;
  for (int64_t o = 0; o < outer; ++o) {
    const auto first = tensor.values.begin() + (o * tensor.dims[axis] + begin) * inner;
    rows.values.insert(rows.values.end(), first, first + (end - begin) * inner);
  }
  return rows;
}

// The outputs that belong to the tokens [begin, end).
Tensors token_rows(const Tensors& all, int64_t begin, int64_t end) {
  Tensors rows;
  for (const char* name : {"hidden_states", "logits", "logprobs", "loss", "indexer_loss"}) {
    const auto found = all.find(name);
    if (found == all.end()) continue;
    rows[name] = take_rows(found->second, std::string(name) == "hidden_states" ? 1 : 0, begin, end);
  }
  return rows;
}

Tensors with_prefix(const Tensors& all, const std::string& prefix, const std::string& renamed) {
  Tensors found;
  for (const auto& [name, tensor] : all) {
    if (name.starts_with(prefix)) found[renamed + name.substr(prefix.size())] = tensor;
  }
  return found;
}

void expect_same_bits(const Tensors& got, const Tensors& want, const std::string& what) {
  EXPECT_FALSE(want.empty()) << what << ": nothing to compare";
  for (const auto& [name, tensor] : want) {
    const auto found = got.find(name);
    ASSERT_NE(found, got.end()) << what << ": " << name << " is missing";
    ASSERT_EQ(found->second.dims, tensor.dims) << what << ": " << name;
    if (tensor.values.empty()) continue;
    EXPECT_EQ(std::memcmp(found->second.values.data(), tensor.values.data(),
                          tensor.values.size() * sizeof(float)),
              0)
        << what << ": " << name << " differs";
  }
}

class Equality : public testing::TestWithParam<EqualityCase> {
 protected:
  void SetUp() override {
    if (!forced_path_exists()) GTEST_SKIP() << "this CPU lacks the forced path";
    request_ = read_json(golden().request).as_object();
  }
  [[nodiscard]] const GoldenRow& golden() const { return GetParam().golden; }

  Tensors run(const object& request, const std::vector<std::string>& adapters,
              const std::vector<std::string>& options = {}) {
    const std::string path = temporary_path("request.json");
    std::ofstream(path) << boost::json::serialize(request);
    Probe probe{.model = golden().model,
                .adapters = adapters,
                .request = path,
                .options = {"--dtype", GetParam().dtype}};
    probe.options.insert(probe.options.end(), options.begin(), options.end());
    ProbeResult result = run_probe(probe);
    EXPECT_EQ(result.exit_code, 0) << result.message;
    return std::move(result.tensors);
  }
  Tensors run(const object& request) { return run(request, golden().adapters); }

  // The request with other sequences, and without training and sampling.
  [[nodiscard]] object with_sequences(array sequences) const {
    object changed = request_;
    changed.erase("train");
    changed.erase("sample");
    changed["sequences"] = std::move(sequences);
    return changed;
  }
  // Calls visit(sequence, begin, end) with each sequence's range of tokens.
  void each_sequence(const std::function<void(const object&, int64_t, int64_t)>& visit) const {
    int64_t begin = 0;
    for (const value& item : request_.at("sequences").as_array()) {
      const auto end = begin + static_cast<int64_t>(item.at("tokens").as_array().size());
      visit(item.as_object(), begin, end);
      begin = end;
    }
  }
  static int64_t adapter_of(const object& sequence) {
    const value* adapter = sequence.if_contains("adapter");
    return adapter == nullptr ? 0 : adapter->to_number<int64_t>();
  }

  [[nodiscard]] bool wants(const char* name) const {
    const array& list = request_.at("want").as_array();
    return std::ranges::any_of(list, [&](const value& v) { return v == name; });
  }

  void expect_threads_and_recompute(const Tensors& whole);
  void expect_stages(const Tensors& whole);
  void expect_sequences_alone(const Tensors& whole);
  void expect_base_without_adapters(const Tensors& whole);
  void expect_adapters_without_the_others(const Tensors& whole);
  void expect_samples(const Tensors& whole);

  object request_;
};

void Equality::expect_threads_and_recompute(const Tensors& whole) {
  const auto& adapters = golden().adapters;
  expect_same_bits(run(request_, adapters, {"--threads", "3"}), whole, "3 threads");
  expect_same_bits(run(request_, adapters, {"--recompute", "full"}), whole, "recompute full");
  expect_same_bits(run(request_, adapters, {"--recompute", "minimal_offloaded"}), whole,
                   "recompute minimal_offloaded");
}

// Names, adapters, training and sampling as well.
void Equality::expect_stages(const Tensors& whole) {
  const object config = read_json(golden().model + "/config.json").as_object();
  const auto* text = config.if_contains("text_config");
  const object& model = text == nullptr ? config : text->as_object();
  const int64_t layers = model.at("num_hidden_layers").as_int64();
  if (layers < 2) return;                         // nothing to divide
  if (request_.contains("indexer_loss")) return;  // refused in stages
  const auto sequences = static_cast<int64_t>(request_.at("sequences").as_array().size());
  const std::string most = std::to_string(std::min<int64_t>(sequences, 4));
  const std::vector<std::string> two_ranks = {"--stages",       "2", "--schedule", "1f1b",
                                              "--microbatches", most};
  const std::vector<std::string> stage_for_each_layer = {
      "--chunks",    std::to_string(layers),   "--schedule",
      "circular",    "--microbatches",         most,
      "--recompute", "custom:iteration_input", "--recompute-iterations",
      "on",          "--recompute-layers",     "off"};
  const auto& division = GetParam().dtype == "f32" ? two_ranks : stage_for_each_layer;
  expect_same_bits(run(request_, golden().adapters, division), whole, "stages");
}

void Equality::expect_sequences_alone(const Tensors& whole) {
  each_sequence([&](const object& sequence, int64_t begin, int64_t end) {
    const Tensors alone = run(with_sequences({sequence}));
    expect_same_bits(token_rows(alone, 0, end - begin), token_rows(whole, begin, end),
                     "tokens " + std::to_string(begin) + " on, alone");
  });
}

void Equality::expect_base_without_adapters(const Tensors& whole) {
  each_sequence([&](const object& sequence, int64_t begin, int64_t end) {
    if (adapter_of(sequence) != 0) return;
    object plain = with_sequences({sequence});
    plain["want"] = array{"hidden_states", "logits", "logprobs", "loss"};
    Tensors want = token_rows(whole, begin, end);
    want.erase("indexer_loss");  // comes with gradients, which nothing takes here
    expect_same_bits(run(plain, {}), want, "without --adapter");
  });
}

void Equality::expect_adapters_without_the_others(const Tensors& whole) {
  for (size_t k = 1; k <= golden().adapters.size(); ++k) {
    array own;
    each_sequence([&](const object& sequence, int64_t, int64_t) {
      if (adapter_of(sequence) == static_cast<int64_t>(k)) own.push_back(sequence);
    });
    if (own.empty()) continue;  // its gradients are zero, which the goldens check
    const std::string prefix = "adapter_grad." + std::to_string(k) + ".";
    expect_same_bits(run(with_sequences(own)), with_prefix(whole, prefix, prefix),
                     "adapter " + std::to_string(k) + " without the others");
  }
}

// Each sample alone, and its logprobs by the trainer's forward pass.
void Equality::expect_samples(const Tensors& whole) {
  const array& entries = request_.at("sample").as_array();
  for (size_t i = 0; i < entries.size(); ++i) {
    const object& entry = entries[i].as_object();
    const Tensors want = with_prefix(whole, "sample." + std::to_string(i) + ".", "sample.0.");
    object alone = request_;
    alone["sample"] = array{entry};
    expect_same_bits(run(alone), want, "sample " + std::to_string(i) + " alone");

    array tokens = entry.at("tokens").as_array();
    const auto prompt = static_cast<int64_t>(tokens.size());
    for (float id : want.at("sample.0.tokens").values) tokens.push_back(static_cast<int64_t>(id));
    array targets(tokens.begin() + 1, tokens.end());
    targets.push_back(0);
    const object sequence{{"tokens", tokens}, {"targets", targets}, {"adapter", adapter_of(entry)}};
    object again = with_sequences({sequence});
    again["want"] = array{"logprobs"};
    const Tensor trained = run(again).at("logprobs");
    const auto total = static_cast<int64_t>(tokens.size());
    expect_same_bits({{"logprobs", take_rows(trained, 0, prompt - 1, total - 1)}},
                     {{"logprobs", want.at("sample.0.logprobs")}}, "sampled, by the trainer");
    const auto given = want.find("sample.0.prompt_logprobs");
    if (given == want.end()) continue;
    expect_same_bits({{"logprobs", take_rows(trained, 0, 0, prompt - 1)}},
                     {{"logprobs", take_rows(given->second, 0, 1, prompt)}},
                     "prompt, by the trainer");
  }
}

// All of a request in one test, so that what the others are compared with runs once.
TEST_P(Equality, OfEveryWayToRunIt) {
  const Tensors whole = run(request_);
  expect_threads_and_recompute(whole);
  expect_stages(whole);
  if (wants("hidden_states")) expect_sequences_alone(whole);
  if (wants("adapter_grads")) {
    expect_base_without_adapters(whole);
    expect_adapters_without_the_others(whole);
  }
  if (request_.contains("sample")) expect_samples(whole);
}

// Every golden in both dtypes.
std::vector<EqualityCase> cases() {
  std::vector<EqualityCase> found;
  for (const GoldenRow& golden : read_goldens()) {
    found.push_back({golden, "f32"});
    found.push_back({golden, "bf16"});
  }
  return found;
}

INSTANTIATE_TEST_SUITE_P(All, Equality, testing::ValuesIn(cases()), [](const auto& info) {
  std::string name = info.param.golden.name + "_" + info.param.dtype;
  std::replace(name.begin(), name.end(), '/', '_');
  return name;
});

}  // namespace
}  // namespace strata::golden
