// SPDX-License-Identifier: Apache-2.0
// strata train and generate over ranks that divide the experts: processes under mpirun give the
// files and the text of one process.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/ranks/ranks_fixture.h"

namespace strata::apps {
namespace {

using testing::HasSubstr;

// DeepSeek-V4 with multi-token prediction: hashed routers and scored ones, whose biases follow
// their loads; adapters of experts, and all parameters.
TEST_F(RanksTest, OfExpertsChangeNoBit) {
  for (const std::string method : {"lora", "full"}) {
    TrainOptions one = options("one-" + method);
    one.model = make_v4_model(/*mtp=*/true);
    one.method = method;
    one.mtp_weight = 0.3;
    one.steps = 4;
    if (method == "full") one.router_bias_rate = 0.01;
    if (method == "lora") one.dtype = "bf16";
    ASSERT_EQ(run_train(one), 0);
    for (const int ranks : {2, 4}) {
      if (ranks == 4 && !runs_all()) continue;
      const std::string name = fmt::format("{}-{}", method, ranks);
      SCOPED_TRACE(name);
      const Ended ended = run_ranks(ranks, dealt(one, name, fmt::format("expert={}", ranks)));
      ASSERT_EQ(ended.code, 0) << ended.text;
      expect_the_files_of(one, name,
                          method == "lora" ? "adapter_model.safetensors" : "model.safetensors");
      EXPECT_THAT(ended.text, HasSubstr(fmt::format("are dealt to {} ranks", ranks)));
    }
  }
}

// In stages, of all parameters and of adapters.
TEST_F(RanksTest, OfExpertsInStagesChangeNoBit) {
  for (const std::string method : {"lora", "full"}) {
    SCOPED_TRACE(method);
    TrainOptions one = options("one-" + method);
    one.model = make_v4_model(/*mtp=*/true);
    one.method = method;
    one.mtp_weight = 0.3;
    one.steps = 3;
    ASSERT_EQ(run_train(one), 0);
    const Ended ended = run_ranks(
        4, dealt(one, method, "pipeline=2,expert=2", {.schedule = "1f1b", .microbatches = 2}));
    ASSERT_EQ(ended.code, 0) << ended.text;
    expect_the_files_of(one, method,
                        method == "lora" ? "adapter_model.safetensors" : "model.safetensors");
  }
}

// In copies, of which each rank has weights and sends to the others of its machine what they lack:
// of all parameters, whose owners are among the ranks of all copies, and of adapters.
TEST_F(RanksTest, OfCopiesOfExpertsChangeNoBit) {
  for (const std::string method : {"lora", "full"}) {
    TrainOptions one = options("one-" + method);
    one.model = make_v4_model(/*mtp=*/true);
    one.method = method;
    one.mtp_weight = 0.3;
    one.steps = 3;
    ASSERT_EQ(run_train(one), 0);
    for (const bool shards : {false, true}) {
      if (shards && method == "lora" && !runs_all()) continue;
      const std::string name = fmt::format("{}-{}", method, shards);
      SCOPED_TRACE(name);
      const Ended ended =
          run_ranks(4, dealt(one, name, "data=2,expert=2", {.shard_weights = shards}));
      ASSERT_EQ(ended.code, 0) << ended.text;
      expect_the_files_of(one, name,
                          method == "lora" ? "adapter_model.safetensors" : "model.safetensors");
      EXPECT_THAT(ended.text, HasSubstr("are dealt to 2 ranks, in 2 copies"));
    }
  }
}

// What is sent is as much of each kind as was planned, or of rows of experts as routers chose,
// which is no more.
TEST_F(RanksTest, OfExpertsSendWhatWasPlanned) {
  TrainOptions o = options("out");
  o.model = make_v4_model();
  o.steps = 2;
  o.json = true;
  for (const std::string other : {"data=1", "pipeline=2", "data=2"}) {
    SCOPED_TRACE(other);
    const int stages = other == "pipeline=2" ? 2 : 1, num_ranks = other == "data=1" ? 2 : 4;
    const Ended trained = run_ranks(num_ranks, dealt(o, "out-" + other, other + ",expert=2",
                                                     {.schedule = "1f1b", .microbatches = stages}));
    ASSERT_EQ(trained.code, 0) << trained.text;
    const boost::json::object all = json_of(trained, "{\"steps\":");
    ASSERT_EQ(std::ssize(all.at("ranks").as_array()), num_ranks);
    for (const boost::json::value& rank : all.at("ranks").as_array()) {
      const boost::json::object& sent = rank.at("sent_bytes").as_object();
      const boost::json::object& planned = rank.at("planned_sent_bytes").as_object();
      for (const char* const kind : {"gradients", "results", "control", "parameters"})
        EXPECT_EQ(sent.at(kind), planned.at(kind)) << kind;
      for (const char* const kind : {"activations", "activation_gradients"}) {
        EXPECT_GT(sent.at(kind).as_int64(), 0) << kind;
        EXPECT_LE(sent.at(kind).as_int64(), planned.at(kind).as_int64()) << kind;
      }
      EXPECT_GT(planned.at("gradients").as_int64(), 0);
      if (stages == 1) {
        EXPECT_GT(planned.at("results").as_int64(), 0);
      }
    }
  }
}

// A probe says of each rank what a pass takes, and what it sends.
TEST_F(RanksTest, OfExpertsHaveTheStatsOfAProbe) {
  const std::string golden = std::string(STRATA_SOURCE_DIR) + "/tests/golden/qwen3_moe/";
  const std::vector<std::string> words = {STRATA_BINARY,
                                          "probe",
                                          golden + "model",
                                          "--adapter",
                                          golden + "a",
                                          "--adapter",
                                          golden + "b",
                                          "--adapter",
                                          golden + "c",
                                          "--request",
                                          golden + "train_adapters.json",
                                          "--out",
                                          root_ + "/probe.safetensors",
                                          "--stats",
                                          root_ + "/stats.json",
                                          "--ranks",
                                          "expert=2"};
  const Ended probed = run_shell(fmt::format("{}-n 2 {}", kMpirun, quoted(words)));
  ASSERT_EQ(probed.code, 0) << probed.text;
  const auto stats = boost::json::parse(content(root_ + "/stats.json")).as_object();
  ASSERT_EQ(stats.at("stages").as_array().size(), 2u);
  ASSERT_EQ(stats.at("ranks").as_array().size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    const boost::json::object& stage = stats.at("stages").at(i).as_object();
    EXPECT_EQ(stage.at("rank"), static_cast<int64_t>(i));
    EXPECT_GT(stage.at("peak_bytes").as_int64(), stage.at("weight_bytes").as_int64());
    const boost::json::object& rank = stats.at("ranks").at(i).as_object();
    EXPECT_EQ(rank.at("sent_bytes").at("gradients"), rank.at("planned_sent_bytes").at("gradients"));
    EXPECT_LE(rank.at("sent_bytes").at("activations").as_int64(),
              rank.at("planned_sent_bytes").at("activations").as_int64());
  }
  EXPECT_LE(stats.at("peak_bytes").as_int64(), stats.at("planned_bytes").as_int64());
  EXPECT_FALSE(stats.at("saved_bytes").as_object().empty());
}

// A plan has the weights and the training state of each rank, less than one process has.
TEST_F(RanksTest, OfExpertsArePlanned) {
  const std::vector<std::string> words = {STRATA_BINARY,   "plan",     "train",
                                          make_v4_model(), "--tokens", "4x16",
                                          "--method",      "full",     "--json"};
  const auto planned = [&](const std::string& ranks) {
    const Ended ended = run_shell(quoted(words) + ranks);
    EXPECT_EQ(ended.code, 0) << ended.text;
    return boost::json::parse(ended.out).as_object();
  };
  const boost::json::object one = planned("");
  const boost::json::object divided = planned("--ranks expert=4");
  for (const char* const item : {"weights", "base training"}) {
    EXPECT_LT(divided.at("bytes").at(item).as_int64(), one.at("bytes").at(item).as_int64());
    EXPECT_GT(divided.at("bytes").at(item).as_int64(), one.at("bytes").at(item).as_int64() / 4);
  }
  ASSERT_EQ(divided.at("ranks").as_array().size(), 4u);
  for (const boost::json::value& rank : divided.at("ranks").as_array()) {
    EXPECT_EQ(rank.at("planned_bytes"), divided.at("planned_bytes"));
    EXPECT_GT(rank.at("planned_sent_bytes").at("activations").as_int64(), 0);
  }
  // Two copies: each expert's state is divided too.
  const boost::json::object copies = planned("--ranks expert=4,data=2");
  ASSERT_EQ(copies.at("ranks").as_array().size(), 8u);
  EXPECT_EQ(copies.at("bytes").at("weights"), divided.at("bytes").at("weights"));
  EXPECT_LT(copies.at("bytes").at("base training").as_int64(),
            divided.at("bytes").at("base training").as_int64());
  // With divided weights a rank keeps less, and asks for the rest where it reads them.
  const boost::json::object shards = planned("--ranks expert=4,data=2 --shard-weights");
  const auto control_sent = [](const boost::json::object& plan) {
    return plan.at("ranks").at(0).at("planned_sent_bytes").at("control").as_int64();
  };
  EXPECT_LT(shards.at("bytes").at("weights").as_int64(),
            copies.at("bytes").at("weights").as_int64());
  EXPECT_GT(control_sent(shards), control_sent(copies));
}

// One line of JSON, printed once.
TEST_F(RanksTest, GenerateWithDividedExperts) {
  const std::vector<std::string> words = {
      STRATA_BINARY,      "generate",     "--model", make_v4_model(), "--prompt",
      "Once upon a time", "--seed",       "5",       "--temperature", "0.9",
      "--json",           "--max-tokens", "12"};
  const Ended one = run_shell(quoted(words));
  ASSERT_EQ(one.code, 0) << one.text;
  for (const auto& [ranks, division] :
       {std::pair(2, "expert=2"), std::pair(4, "pipeline=2,expert=2")}) {
    const Ended divided =
        run_shell(fmt::format("{}-n {} {} --ranks {}", kMpirun, ranks, quoted(words), division));
    ASSERT_EQ(divided.code, 0) << divided.text;
    EXPECT_EQ(divided.out, one.out) << division;
  }
}

}  // namespace
}  // namespace strata::apps
