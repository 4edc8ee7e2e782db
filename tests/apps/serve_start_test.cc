// SPDX-License-Identifier: Apache-2.0
// strata serve, the program itself: how it starts and ends, and adapters that it serves by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/tinker/base_names.h"
#include "tests/apps/serve_run.h"

namespace strata::apps {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

TEST_F(ServeStartTest, TheAddressComesFirstAndCtrlCSaysWhatItDoes) {
  const auto server = serve(named({"--metrics-listen", "127.0.0.1:0"}));
  EXPECT_THAT(server->out(), StartsWith("listening on http://127.0.0.1:"));
  EXPECT_LT(server->out().find("metrics on "), server->out().find("page "));
  EXPECT_THAT(server->out(), ContainsRegex("page +http://127.0.0.1:[0-9]+/ in a browser\n"));
  EXPECT_THAT(server->out(), ContainsRegex("OpenAI +http://127.0.0.1:[0-9]+/v1 for"));
  EXPECT_THAT(server->out(), ContainsRegex("models +tiny\n"));
  EXPECT_THAT(server->out(), ContainsRegex("keys +none: this machine alone"));
  EXPECT_THAT(server->out(), Not(HasSubstr("kv cache"))) << "for --verbose";
  EXPECT_EQ(end(*server), 0);
  EXPECT_THAT(server->err(),
              HasSubstr("Ctrl-C: new work is refused; the running pass and queued "
                        "saves are finished, for 30 s at most (once more: at once)"));
  EXPECT_THAT(server->err(), HasSubstr("strata: stopped\n"));
}

// As batch systems are asked to send.
TEST_F(ServeStartTest, SIGUSR2FinishesWhatRunsAsSIGTERMDoes) {
  const auto server = serve(named({"--metrics-listen", "127.0.0.1:0"}));
  EXPECT_EQ(end(*server, SIGUSR2), 0);
  EXPECT_THAT(server->err(), HasSubstr("strata: SIGUSR2: new work is refused"));
}

TEST_F(ServeStartTest, ADirectoryAloneIsServedToThisMachine) {
  fs::copy(model(), root_ + "/my model (1)");
  const fs::path before = fs::current_path();
  fs::current_path(root_);
  const auto server = serve({"my model (1)", "--listen", "127.0.0.1:0"});
  fs::current_path(before);
  EXPECT_THAT(
      server->out(),
      HasSubstr("my model (1) stands for --model my-model--1-=my model (1) --no-keys --data "
                "./strata-my-model--1-:"));
  const int port = port_of(server->out());
  EXPECT_THAT(ask(port, "/api/v1/get_server_capabilities").body,
              HasSubstr(R"("model_name":"my-model--1-")"));
  EXPECT_TRUE(fs::exists(root_ + "/strata-my-model--1-/strata.db"));
  EXPECT_EQ(end(*server, SIGTERM), 0);
}

TEST_F(ServeStartTest, WhatStagesCannotDoIsRefused) {
  const auto fault = [&](const Words& more) {
    Words all = {"serve", model(), "--listen", "127.0.0.1:0", "--data", root_ + "/refused"};
    all.insert(all.end(), more.begin(), more.end());
    const Ran ran = run_program(all);
    EXPECT_EQ(ran.code, 2);
    return ran.err;
  };
  EXPECT_THAT(fault({"--stages", "2", "--speculate", "mtp"}),
              HasSubstr("--stages 2 and --speculate mtp"));
  EXPECT_THAT(fault({"--stages", "64"}), HasSubstr("--stages 64: 64 stages"));
  EXPECT_THAT(fault({"--stages", "0"}), HasSubstr("--stages"));
}

TEST_F(ServeStartTest, ElsewhereKeysAndDataAreAskedFor) {
  const auto fault = [&](const Words& args, const Words& variables = {}) {
    Words all = {"serve"};
    all.insert(all.end(), args.begin(), args.end());
    const Ran ran = run_program(all, "", variables);
    EXPECT_EQ(ran.code, 2);
    return ran.err;
  };
  EXPECT_THAT(fault({model(), "--listen", "0.0.0.0:0"}), HasSubstr("strata keygen"));
  EXPECT_THAT(fault({model(), "--metrics-listen", "0.0.0.0:0"}), HasSubstr("strata keygen"));
  EXPECT_THAT(fault({model(), "--keys", root_ + "/keys"}), HasSubstr("--data"));
  EXPECT_THAT(fault({model()}, {"STRATA_KEYS=tml-0123456789012345678901234"}), HasSubstr("--data"));
  EXPECT_THAT(fault({model(), "--model", "a=" + model()}), HasSubstr("--model are given"));
  EXPECT_THAT(fault({root_ + "/nowhere"}), HasSubstr("no such directory"));
}

TEST_F(ServeStartTest, AMetricsPortThatNobodyNamedMayBeTaken) {
  const Socket other(9464, /*listens=*/true);  // unless one has it already
  const auto server = serve(named());
  EXPECT_THAT(server->err(), HasSubstr("127.0.0.1:9464"));
  EXPECT_THAT(server->err(), HasSubstr("is on port"));
  const int port = port_of(server->out(), "metrics on http://127.0.0.1:");
  EXPECT_NE(port, 9464);
  EXPECT_EQ(ask(port, "/metrics").status, 200);
  EXPECT_EQ(end(*server), 0);
  Words args = named({"--metrics-listen", "127.0.0.1:9464", "--memory", "2GiB"});
  args.insert(args.begin(), "serve");
  EXPECT_THAT(run_program(args).err, HasSubstr("--metrics-listen 127.0.0.1:9464"));
}

TEST(ServedName, IsTheFoldersWithoutWhatANameMayNotHave) {
  EXPECT_EQ(server::base_name_for("/models/Qwen3 0.6B"), "Qwen3-0.6B");
  EXPECT_EQ(server::base_name_for("/models/tiny/"), "tiny");
  EXPECT_EQ(server::base_name_for("/cache/hub/models--Qwen--Qwen3-0.6B/snapshots/c1899de2"),
            "Qwen/Qwen3-0.6B");
  EXPECT_EQ(server::base_name_for("/"), "model");
}

class ServedAdapterTest : public ServeStartTest {
 protected:
  // The answer to a greedy sample of the model of this name, as bytes.
  static std::string sample(int port, const std::string& name) {
    const std::string session{
        object_of(ask(port, "/api/v1/create_session",
                      R"({"type":"create_session","tags":[],"sdk_version":"0.38.0"})"))
            .at("session_id")
            .as_string()};
    const std::string sampler{
        object_of(ask(port, "/api/v1/create_sampling_session",
                      R"({"session_id":")" + session + R"(","sampling_session_seq_id":0,)" +
                          R"("base_model":")" + name + R"("})"))
            .at("sampling_session_id")
            .as_string()};
    const std::string request{
        object_of(ask(port, "/api/v1/asample",
                      R"({"sampling_session_id":")" + sampler +
                          R"(","seq_id":0,"num_samples":1,"prompt_logprobs":true,)" +
                          R"("prompt":{"chunks":[{"type":"encoded_text","tokens":[5,6,7,8]}]},)" +
                          R"("sampling_params":{"max_tokens":8,"temperature":0}})"))
            .at("request_id")
            .as_string()};
    const Reply reply =
        ask(port, "/api/v1/retrieve_future", R"({"request_id":")" + request + R"("})");
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.body;
  }
  // With weights far from those of the base.
  std::string trained(const std::string& name, double lr) {
    TrainOptions o = options(name);
    o.steps = 3;
    o.lr = lr;
    EXPECT_EQ(run_train(o), 0);
    return o.out;
  }
};

TEST_F(ServedAdapterTest, IsSampledByItsNameAndNotTrained) {
  const std::string one = trained("one", 1e-2), two = trained("two", 5e-2);
  const auto server = serve(named({"--adapter", "my-one=" + one, "--adapter", "my-two=" + two,
                                   "--alias", "again=my-one", "--metrics-listen", "127.0.0.1:0"}));
  const int port = port_of(server->out());
  const std::string models = ask(port, "/api/v1/get_server_capabilities").body;
  for (const char* name : {"tiny", "my-one", "my-two", "again"})
    EXPECT_THAT(models, HasSubstr(std::string(R"("model_name":")") + name));
  EXPECT_EQ(std::count(models.begin(), models.end(), '{'), 5);
  const std::string base = sample(port, "tiny"), of_one = sample(port, "my-one");
  EXPECT_NE(of_one, base);
  EXPECT_NE(sample(port, "my-two"), of_one);
  EXPECT_EQ(sample(port, "my-one"), of_one);
  EXPECT_EQ(sample(port, "again"), of_one);
  EXPECT_EQ(sample(port, "tiny"), base);
  const std::string session{
      object_of(ask(port, "/api/v1/create_session", R"({"tags":[],"sdk_version":"0.38.0"})"))
          .at("session_id")
          .as_string()};
  const Reply refused =
      ask(port, "/api/v1/create_model",
          R"({"session_id":")" + session +
              R"(","model_seq_id":0,"base_model":"my-one","lora_config":{"rank":8}})");
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.body, HasSubstr("'my-one' is an adapter that this server samples and does "
                                      "not train; train its base model 'tiny'"));
  EXPECT_EQ(end(*server), 0);
}

TEST_F(ServedAdapterTest, ItsRecurrentStatesAreInTheMetrics) {
  const std::string hybrid = STRATA_SOURCE_DIR "/tests/golden/qwen3_5/model";
  const auto server =
      serve({"--model", "hybrid=" + hybrid, "--no-keys", "--data", root_ + "/data", "--listen",
             "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--verbose"},
            "samples of ");
  sample(port_of(server->out()), "hybrid");
  const std::string metrics =
      ask(port_of(server->out(), "metrics on http://127.0.0.1:"), "/metrics").body;
  EXPECT_THAT(metrics, ContainsRegex("\nstrata_memory_bytes.use=\"states\". [1-9]"));
  EXPECT_THAT(metrics, ContainsRegex("\nstrata_memory_plan_bytes.use=\"states\". [1-9]"));
  EXPECT_EQ(end(*server), 0);
}

TEST_F(ServedAdapterTest, IsCheckedAtTheStart) {
  const auto fault = [&](const std::string& adapter, const Words& more = {}) {
    Words args =
        named({"--memory", "2GiB", "--adapter", adapter, "--metrics-listen", "127.0.0.1:0"});
    args.insert(args.begin(), "serve");
    args.insert(args.end(), more.begin(), more.end());
    const Ran ran = run_program(args);
    EXPECT_EQ(ran.code, 2) << ran.err;
    return ran.err;
  };
  const std::string adapter = trained("one", 1e-2);
  EXPECT_THAT(fault("x"), HasSubstr("--adapter: x: no such directory"));
  EXPECT_THAT(fault("x=" + root_ + "/nowhere"), HasSubstr("/nowhere: no such directory"));
  EXPECT_THAT(fault("x=" + model()), HasSubstr("this is a model, want a LoRA adapter"));
  EXPECT_THAT(fault("tiny=" + adapter), HasSubstr("the name 'tiny' is given twice"));
  EXPECT_THAT(fault("x=" + adapter, {"--max-rank", "2"}),
              HasSubstr("has rank 4, and --max-rank is 2; raise it"));
  fs::copy(model(), root_ + "/other");
  fs::copy(adapter, root_ + "/stray");
  std::ofstream(root_ + "/stray/adapter_config.json")
      << R"({"peft_type":"LORA","r":4,"lora_alpha":4,"base_model_name_or_path":"Org/Else"})";
  EXPECT_THAT(fault("x=" + root_ + "/stray", {"--model", "other=" + root_ + "/other"}),
              HasSubstr("is 'Org/Else', which is none of the served models: tiny, other"));
}

}  // namespace
}  // namespace strata::apps
