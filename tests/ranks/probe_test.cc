// SPDX-License-Identifier: Apache-2.0
// strata probe over ranks, and what ranks send.
#include "apps/probe/probe.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <boost/json.hpp>
#include <chrono>
#include <fstream>
#include <map>
#include <string>
#include <thread>

#include "setup/cluster_file.h"
#include "tests/ranks/ranks_fixture.h"

namespace strata::apps {
namespace {

namespace json = boost::json;
using testing::HasSubstr;

class ProbeOverRanks : public RanksTest {
 protected:
  // A request of a golden, with its first adapters, and the file that one process makes of it.
  [[nodiscard]] ProbeOptions request_of(const std::string& golden, const std::string& request,
                                        const std::vector<std::string>& adapters) const {
    const std::string folder = std::string(STRATA_SOURCE_DIR) + "/tests/golden/" + golden + "/";
    ProbeOptions one;
    one.model = folder + "model";
    for (const std::string& name : adapters) one.adapters.push_back(folder + name);
    one.threads = 1;
    one.request = folder + request + ".json";
    one.out = root_ + "/one.safetensors";
    return one;
  }
  // So many ranks write the same file.
  void expect_same_of(const ProbeOptions& one, int ranks, const std::string& division, bool shards,
                      int stages = 1) const {
    SCOPED_TRACE(
        fmt::format("{}{} --stages {}", division, shards ? " --shard-weights" : "", stages));
    std::vector<std::string> words = {STRATA_BINARY, "probe",     one.model,
                                      "--request",   one.request, "--ranks",
                                      division,      "--out",     root_ + "/divided.safetensors"};
    for (const std::string& dir : one.adapters) words.insert(words.end(), {"--adapter", dir});
    if (shards) words.emplace_back("--shard-weights");
    if (stages > 1) words.insert(words.end(), {"--stages", fmt::format("{}", stages)});
    const Ended ended = run_shell(fmt::format("{}-n {} {}", kMpirun, ranks, quoted(words)));
    ASSERT_EQ(ended.code, 0) << ended.text;
    EXPECT_EQ(content(root_ + "/divided.safetensors"), content(one.out));
    fs::remove(root_ + "/divided.safetensors");
  }
};

// Gradients, steps and samples of two adapters, and of all parameters, as the file of one process.
TEST_F(ProbeOverRanks, ChangeNoByte) {
  for (const std::string request : {"main", "params", "train_adapters", "sample"}) {
    SCOPED_TRACE(request);
    const ProbeOptions one = request_of("llama31", request, {"a", "b"});
    ASSERT_EQ(run_probe(one), 0);
    const bool shards = request != "main";
    if (runs_all() || request == "train_adapters") {
      expect_same_of(one, 2, "data=2", shards);
      expect_same_of(one, 2, "data=2", shards, /*stages=*/2);
    }
    if (runs_all() || request != "train_adapters")
      expect_same_of(one, 4, "data=2,pipeline=2", shards);
  }
}

// Windows, a recurrent state, experts in one tensor and one by one, streams and a layer of
// multi-token prediction: each in one division, and in all with STRATA_RANKS=all.
TEST_F(ProbeOverRanks, ChangeNoByteOfFamilies) {
  struct Division {
    int ranks;
    std::string numbers;
    bool shards;
  };
  const std::vector<Division> divisions = {{2, "pipeline=2", false},
                                           {3, "data=3", false},
                                           {2, "data=2", true},
                                           {4, "pipeline=2,data=2", false},
                                           {4, "data=2,pipeline=2", true}};
  struct Family {
    std::string golden, request;
    std::vector<std::string> adapters;
  };
  const std::vector<Family> families = {{"gemma3", "train_adapters", {"a", "b"}},
                                        {"qwen3_5", "params", {"a", "b"}},
                                        {"qwen3_moe_fused", "train_params", {"a"}},
                                        {"qwen3_moe", "train_adapters", {"a", "b", "c"}},
                                        {"deepseek_v4_mtp", "train_params", {"a", "b"}},
                                        {"qwen2_window", "train_params", {"a"}},
                                        {"ministral", "train_params", {"a"}},
                                        {"deepseek_moe", "train_adapters", {"a"}},
                                        {"qwen3_5_moe", "train_params", {"a", "b"}},
                                        {"glm4_moe_lite", "params", {"a"}}};
  for (size_t i = 0; i < (runs_all() ? families.size() : divisions.size()); ++i) {
    SCOPED_TRACE(families[i].golden);
    const ProbeOptions one =
        request_of(families[i].golden, families[i].request, families[i].adapters);
    ASSERT_EQ(run_probe(one), 0);
    for (size_t d = 0; d < divisions.size(); ++d) {
      if (!runs_all() && d != i) continue;
      expect_same_of(one, divisions[d].ranks, divisions[d].numbers, divisions[d].shards);
    }
  }
}

// Hidden states, logits, losses, gradients and samples of adapters and the base, with a cache that
// ranks divide, as the file of one process: heads of keys that are copied, experts, also with an A
// that gate and up share, and latent attention.
TEST_F(ProbeOverRanks, DivideMatricesAndChangeNoByte) {
  struct Case {
    std::string golden;
    int ranks;
    std::vector<std::string> adapters;
  };
  for (const Case& c : {Case{"llama31", 2, {"a", "b"}}, Case{"qwen3", 3, {"a", "b"}},
                        Case{"qwen3_moe", 4, {"a", "b", "c"}}, Case{"gpt_oss", 2, {"a", "b"}},
                        Case{"deepseek_moe", 4, {"a"}}}) {
    SCOPED_TRACE(c.golden);
    ProbeOptions one = request_of(c.golden, "main", c.adapters);
    json::object request = json::parse(content(one.request)).as_object();
    const std::string samples = request_of(c.golden, "sample", {}).request;
    request["sample"] = json::parse(content(samples)).as_object().at("sample");
    one.request = root_ + "/request.json";
    std::ofstream(one.request) << json::serialize(request);
    ASSERT_EQ(run_probe(one), 0);
    expect_same_of(one, c.ranks, fmt::format("tensor={}", c.ranks), /*shards=*/false);
  }
}

// Tensor ranks in pipelines, with data ranks and with weights that these divide.
TEST_F(ProbeOverRanks, DivideMatricesOfStagesAndOfData) {
  const ProbeOptions one = request_of("qwen3_moe", "train_adapters", {"a", "b", "c"});
  ASSERT_EQ(run_probe(one), 0);
  expect_same_of(one, 4, "tensor=2,data=2", /*shards=*/true);
  expect_same_of(one, 4, "tensor=2,pipeline=2", /*shards=*/false);
  if (!runs_all()) return;
  expect_same_of(one, 2, "tensor=2", /*shards=*/false, /*stages=*/2);
  expect_same_of(one, 4, "tensor=2,data=2", /*shards=*/false, /*stages=*/2);
}

// Gradients and steps of all parameters, whose tensors in files are rows of several matrices, and
// whose experts are one tensor.
TEST_F(ProbeOverRanks, DivideMatricesWhereAllParametersTrain) {
  const ProbeOptions fused = request_of("qwen3_moe_fused", "train_params", {"a"});
  ASSERT_EQ(run_probe(fused), 0);
  expect_same_of(fused, 4, "tensor=2,data=2", /*shards=*/true);
  const ProbeOptions one = request_of("phi3", "params", {"a", "b"});
  ASSERT_EQ(run_probe(one), 0);
  expect_same_of(one, 4, "tensor=4", /*shards=*/false);
}

// Experts that ranks have in turn: results and samples of the base and of adapters, with an A for
// each expert or one for gate and up; gradients and steps of adapters and of all parameters.
TEST_F(ProbeOverRanks, DivideExpertsAndChangeNoByte) {
  struct Case {
    std::string golden, request;
    int ranks;
    std::vector<std::string> adapters;
  };
  std::vector<Case> cases = {{"qwen3_moe", "sample", 3, {"a", "b", "c"}},
                             {"gpt_oss", "main", 2, {"a", "b"}},
                             {"qwen3_moe", "train_adapters", 2, {"a", "b", "c"}},
                             {"qwen3_5_moe", "train_params", 3, {"a", "b"}}};
  if (runs_all()) {
    cases.push_back({"deepseek_moe", "train_adapters", 4, {"a"}});
    cases.push_back({"glm4_moe_lite", "params", 2, {"a"}});
    cases.push_back({"gemma4_moe", "main", 6, {"a"}});
  }
  for (const Case& c : cases) {
    SCOPED_TRACE(c.golden + " " + c.request);
    const ProbeOptions one = request_of(c.golden, c.request, c.adapters);
    ASSERT_EQ(run_probe(one), 0);
    expect_same_of(one, c.ranks, fmt::format("expert={}", c.ranks), /*shards=*/false);
  }
  for (const std::string request : {"main", "train_adapters"}) {
    SCOPED_TRACE(request);
    const ProbeOptions one = request_of("qwen3_moe", request, {"a", "b", "c"});
    ASSERT_EQ(run_probe(one), 0);
    expect_same_of(one, 4, "pipeline=2,expert=2", /*shards=*/false);
    expect_same_of(one, 4, "data=2,expert=2", /*shards=*/request != "main");
  }
  const ProbeOptions one = request_of("qwen3_5_moe", "train_params", {"a", "b"});
  ASSERT_EQ(run_probe(one), 0);
  expect_same_of(one, 4, "tensor=2,expert=2", /*shards=*/false);
}

// What tensor ranks and expert ranks do not do yet is refused by its name, before a model is
// loaded.
TEST_F(ProbeOverRanks, RanksThatDivideAStageRefuseTheRest) {
  struct Case {
    std::string golden, request, ranks;
    int started;
    std::vector<std::string> words;
    std::string want;
  };
  for (const Case& c :
       {Case{"llama2",
             "sample",
             "tensor=2,expert=2",
             4,
             {},
             "--ranks expert=2: the model has no experts"},
        Case{"gpt_oss", "main", "expert=7", 7, {}, "6 experts are fewer than the ranks"}}) {
    SCOPED_TRACE(c.want);
    const ProbeOptions one = request_of(c.golden, c.request, {"a", "b"});
    std::vector<std::string> words = {STRATA_BINARY, "probe",     one.model,
                                      "--request",   one.request, "--ranks",
                                      c.ranks,       "--out",     root_ + "/out.safetensors"};
    for (const std::string& dir : one.adapters) words.insert(words.end(), {"--adapter", dir});
    words.insert(words.end(), c.words.begin(), c.words.end());
    const Ended ended = run_shell(fmt::format("{}-n {} {}", kMpirun, c.started, quoted(words)));
    EXPECT_EQ(ended.code, 2);
    EXPECT_THAT(ended.text, HasSubstr(c.want));
    EXPECT_FALSE(fs::exists(root_ + "/out.safetensors"));
  }
}

// What each sends, to the byte of what was planned, and what a probe says of it.
TEST_F(RanksTest, SendWhatWasPlanned) {
  TrainOptions o = options("out");
  o.model = deep_model();
  o.method = "full";
  o.steps = 3;
  o.json = true;
  const auto expect_planned = [](const json::object& all, size_t ranks) {
    ASSERT_EQ(all.at("ranks").as_array().size(), ranks);
    std::map<std::string, int64_t> sums;
    for (const json::value& rank : all.at("ranks").as_array()) {
      EXPECT_EQ(rank.at("sent_bytes"), rank.at("planned_sent_bytes"));
      for (const auto& [kind, bytes] : rank.at("sent_bytes").as_object())
        sums[std::string(kind)] += bytes.as_int64();
    }
    for (const auto& [kind, bytes] : sums) EXPECT_EQ(all.at("sent_bytes").at(kind), bytes) << kind;
    EXPECT_GT(sums["activations"], 0);
    EXPECT_GT(sums["gradients"], 0);
    EXPECT_GT(sums["results"], 0);
  };
  // Threads of a process are ranks too.
  for (const std::string division : {"pipeline=2,data=2", "data=2", "tensor=2,data=2"}) {
    const int stages = division == "data=2" ? 2 : 1;
    SCOPED_TRACE(division);
    const Ended trained =
        run_ranks(4 / stages, dealt(o, "out-" + division, division,
                                    {.stages = stages, .schedule = "1f1b", .microbatches = 2}));
    ASSERT_EQ(trained.code, 0) << trained.text;
    EXPECT_THAT(trained.text, HasSubstr("step 1 sends"));
    expect_planned(json_of(trained, "{\"steps\":"), 4);
  }

  const std::string golden = std::string(STRATA_SOURCE_DIR) + "/tests/golden/llama31/";
  for (const std::string division : {"data=2,pipeline=2", "data=2,tensor=2"}) {
    SCOPED_TRACE(division);
    const std::vector<std::string> words = {STRATA_BINARY,
                                            "probe",
                                            golden + "model",
                                            "--adapter",
                                            golden + "a",
                                            "--adapter",
                                            golden + "b",
                                            "--request",
                                            golden + "params.json",
                                            "--out",
                                            root_ + "/probe.safetensors",
                                            "--stats",
                                            root_ + "/stats.json",
                                            "--ranks",
                                            division};
    const Ended probed = run_shell(fmt::format("{}-n 4 {}", kMpirun, quoted(words)));
    ASSERT_EQ(probed.code, 0) << probed.text;
    const json::object stats = json::parse(content(root_ + "/stats.json")).as_object();
    expect_planned(stats, 4);
    ASSERT_EQ(stats.at("stages").as_array().size(), 4u);
    for (int64_t i = 0; i < 4; ++i) {
      EXPECT_EQ(stats.at("stages").at(static_cast<size_t>(i)).at("rank"), i);
      EXPECT_GT(stats.at("stages").at(static_cast<size_t>(i)).at("weight_bytes").as_int64(), 0);
    }
    EXPECT_FALSE(stats.at("saved_bytes").as_object().empty());
  }
}

// Memory that is in files without a disk.
int64_t machine_shared_bytes() {
  std::ifstream in("/proc/meminfo");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("Shmem:")) return std::stoll(line.substr(6)) * 1024;
  }
  return 0;
}

// The most that there was of it more than before, while `body` ran.
template <typename Body>
int64_t most_shared_bytes(Body body) {
  const int64_t before = machine_shared_bytes();
  std::atomic<bool> has_ended = false;
  int64_t most = 0;
  std::jthread watch([&] {
    while (!has_ended) {
      most = std::max(most, machine_shared_bytes() - before);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  });
  body();
  has_ended = true;
  watch.join();
  return most;
}

// Of what a run of so many processes printed, each at the first of its ranks; the most that was
// planned for one.
int64_t expect_the_planned(const json::object& all, int num_processes) {
  int64_t peaks = 0, planned = 0, most = 0;
  for (const json::value& value : all.at("ranks").as_array()) {
    const json::object& rank = value.as_object();
    const bool is_first = rank.at("rank").as_int64() < num_processes;
    EXPECT_EQ(rank.contains("peak_bytes"), is_first) << value;
    if (!is_first) continue;
    const int64_t peak = rank.at("peak_bytes").as_int64(),
                  of_plan = rank.at("planned_bytes").as_int64();
    EXPECT_LE(peak, of_plan) << value;
    EXPECT_GT(peak, of_plan * 2 / 3) << value;
    peaks += peak;
    planned += of_plan;
    most = std::max(most, of_plan);
  }
  EXPECT_EQ(peaks, all.at("peak_bytes"));
  EXPECT_EQ(planned, all.at("planned_bytes"));
  return most;
}

// Of each rank no more than was planned for it, and not much less: with weights that are divided
// a part of them. A plan counts all gradients on their way at once, where several rounds allow
// it.
TEST_F(RanksTest, TakeThePlannedMemory) {
  TrainOptions o = wide_options("out");
  o.steps = 1;
  o.json = true;
  struct Case {
    int ranks;
    std::string division;
    StageOptions stages = {};
    std::string method = "full";
    bool has_less = false;  // memory than the one before has taken, by a byte
  };
  const std::vector<Case> cases = {
      {2, "data=2"},
      {2, "data=2", {}, "full", true},
      {2, "data=2", {.shard_weights = true}},
      {2, "data=2", {.microbatches = 2}},
      {2, "data=2", {}, "lora"},
      {2, "data=2", {.stages = 2, .schedule = "1f1b", .microbatches = 2}, "lora"},
      {4, "pipeline=2,data=2", {}, "lora"},
      {4, "pipeline=2,data=2", {}, "lora", true},
      {4, "pipeline=2,data=2", {.schedule = "1f1b", .microbatches = 2}}};
  int64_t planned_before = 0;  // of a rank
  for (const Case& c : cases) {
    if (!runs_all() && c.ranks == 2 && !(c.stages == StageOptions())) continue;
    SCOPED_TRACE(fmt::format("{} {} {}", c.division, c.stages.shard_weights, c.method));
    o.method = c.method;
    o.memory = c.has_less ? std::to_string(planned_before - 1) : "";
    Ended ended;
    const int64_t most_shared = most_shared_bytes(
        [&] { ended = run_ranks(c.ranks, dealt(o, "out", c.division, c.stages)); });
    ASSERT_EQ(ended.code, 0) << ended.text;
    EXPECT_THAT(ended.text, HasSubstr("MPI"));
    if (c.method == "lora") {
      // Weights of 57.7 M parameters in bf16, once; and what MPI has there.
      constexpr double kOnce = 57.7e6 * 2;
      EXPECT_GT(static_cast<double>(most_shared), 0.9 * kOnce);
      EXPECT_LT(static_cast<double>(most_shared), 1.6 * kOnce);
    }
    // Weights that do not train are there once.
    const bool is_shared =
        ended.text.find("one copy of the weights that 2 share") != std::string::npos;
    EXPECT_EQ(is_shared, c.method == "lora") << ended.text;
    const int64_t planned = expect_the_planned(json_of(ended, "{\"steps\":"), c.ranks);
    if (c.has_less) {
      EXPECT_LT(planned, planned_before);
    }
    planned_before = planned;
    fs::remove_all(root_ + "/out");
  }
}

// As its line says; what does not train is refused, once.
TEST_F(RanksTest, AreBenched) {
  const auto bench = [&](const std::string& work, const std::string& schedule = "gpipe") {
    const std::vector<std::string> words = {STRATA_BINARY,
                                            "bench",
                                            work,
                                            "--model",
                                            deep_model(),
                                            "--ranks",
                                            "pipeline=2,data=2",
                                            "--repeat",
                                            "1",
                                            "--microbatches",
                                            "2",
                                            "--json",
                                            "--method",
                                            "full",
                                            "--pipeline-schedule",
                                            schedule};
    return run_shell(fmt::format("{}-n 4 {}", kMpirun, quoted(words)));
  };
  const Ended ended = bench("train_s512");
  ASSERT_EQ(ended.code, 0) << ended.text;
  const json::object line = json_of(ended, "{\"work\":");
  EXPECT_EQ(ended.out.find("{\"work\":", ended.out.find("{\"work\":") + 1), std::string::npos);
  EXPECT_EQ(line.at("method"), "full");
  EXPECT_EQ(line.at("stages"), 2);
  EXPECT_EQ(line.at("data_ranks"), 2);
  EXPECT_EQ(line.at("microbatches"), 2);
  EXPECT_EQ(line.at("sequences"), 4);
  const Ended apart = bench("train_s512", "zb1p");
  EXPECT_EQ(apart.code, 2);
  EXPECT_THAT(apart.text, HasSubstr("--ranks data=2 and --pipeline-schedule zb1p"));
  const Ended refused = bench("decode1");
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.text, HasSubstr("--ranks: decode1 does not train"));
}

// Processes of one machine, whose link MPI is; one writes the file.
TEST_F(RanksTest, MeasureAMachineForPlans) {
  const std::string file = root_ + "/cluster.toml";
  const auto bench = [&](int ranks) {
    return run_shell(
        fmt::format("{}-n {} {}", kMpirun, ranks,
                    quoted({STRATA_BINARY, "bench", "cluster", "--threads", "1", "--ranks",
                            fmt::format("data={}", ranks), "--out", file})));
  };
  const Ended ended = bench(2);
  ASSERT_EQ(ended.code, 0) << ended.text;
  const Cluster cluster = read_cluster_file(file, DType::kBF16);
  EXPECT_GT(cluster.limits.flops, 1e6);
  EXPECT_GT(cluster.links.link.bytes_per_s, 1e6);
  EXPECT_GT(cluster.links.link.latency_s, 0.0);
  EXPECT_EQ(cluster.links.ranks_per_node, 0);
  EXPECT_EQ(ended.out.find("a link", ended.out.find("a link") + 1), std::string::npos);
  const Ended refused = bench(1);
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.text, HasSubstr("a link has two ends"));
}

}  // namespace
}  // namespace strata::apps
