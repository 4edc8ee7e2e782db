// SPDX-License-Identifier: Apache-2.0
// What may be typed in one command may be typed in the others: adapters and models of a server, its
// port and its state folder, recipes in others' spelling, and a run that goes on with its own
// options.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/resolve_paths.h"
#include "apps/serve/options.h"
#include "tests/apps/serve_run.h"

namespace strata::apps {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class Doors : public ServeStartTest {
 protected:
  void make_adapter() const {
    TrainOptions o = options("adapter");
    o.steps = 3;
    ASSERT_EQ(run_train(o), 0);
  }
  [[nodiscard]] Ran run(const Words& words) const {
    Surroundings around;
    around.folder = root_;
    return run_program(words, "", around);
  }
};

TEST_F(Doors, AServerTakesAnAdapterWhereItTakesAModel) {
  make_adapter();
  const std::string adapter = root_ + "/adapter";
  const auto server =
      serve({adapter, "--port", "0", "--state", root_ + "/state", "--metrics-listen", "0"});
  EXPECT_THAT(server->out(), ContainsRegex("models +model, adapter\n"));
  EXPECT_TRUE(fs::exists(root_ + "/state/strata.db"));
  const int port = port_of(server->out());
  ASSERT_GT(port, 0);
  EXPECT_THAT(ask(port, "/v1/models").body,
              AllOf(HasSubstr("\"id\":\"model\""), HasSubstr("\"id\":\"adapter\"")));
  EXPECT_EQ(end(*server), 0);
  EXPECT_EQ(run({"check", "--state", root_ + "/state"}).code, 0);
  EXPECT_EQ(run({"backup", "--state", root_ + "/state", "--out", root_ + "/b.tar"}).code, 0);
  EXPECT_EQ(run({"restore", "--in", root_ + "/b.tar", "--state", root_ + "/again"}).code, 0);
  EXPECT_TRUE(fs::exists(root_ + "/again/strata.db"));
}

TEST_F(Doors, AKeyMayBeHeldToAdapters) {
  make_adapter();
  const std::string adapter = root_ + "/adapter";
  const std::string alice = "tml-" + std::string(30, 'a'), bob = "tml-" + std::string(30, 'b');
  std::ofstream(root_ + "/keys") << alice << " alice adapters=one\n" << bob << " bob\n";
  fs::permissions(root_ + "/keys", fs::perms::owner_read | fs::perms::owner_write);
  const auto server = serve({"--model", "tiny=" + model(), "--adapter", "one=" + adapter,
                             "--adapter", "two=" + adapter, "--keys", root_ + "/keys", "--state",
                             root_ + "/state", "--port", "0", "--metrics-listen", "0"});
  const int port = port_of(server->out());
  const auto status = [&](const std::string& key, const std::string& name) {
    return ask(port, "/v1/completions",
               R"({"model": ")" + name + R"(", "prompt": "Once", "max_tokens": 1})", key)
        .status;
  };
  EXPECT_EQ(status(alice, "tiny"), 200);
  EXPECT_EQ(status(alice, "one"), 200);
  EXPECT_EQ(status(alice, "two"), 404);
  EXPECT_EQ(status(bob, "two"), 200);
  for (const char* path : {"/v1/models", "/api/v1/get_server_capabilities"}) {
    EXPECT_THAT(ask(port, path, "", alice).body,
                AllOf(HasSubstr("\"one\""), Not(HasSubstr("\"two\""))));
    EXPECT_THAT(ask(port, path, "", bob).body, HasSubstr("\"two\""));
  }
  EXPECT_EQ(ask(port, "/v1/models/two", "", alice).status, 404);
  EXPECT_EQ(end(*server), 0);
}

TEST_F(Doors, ModelsAndAdaptersOfAServerNeedNoName) {
  make_adapter();
  const std::string adapter = root_ + "/adapter";
  server::ServeOptions o;
  o.models = {model(), "other=" + adapter};
  o.adapters = {adapter, "style=" + adapter};
  resolve_paths(o);
  EXPECT_THAT(o.models, ElementsAre("model=" + model()));
  EXPECT_THAT(o.adapters,
              ElementsAre("adapter=" + adapter, "style=" + adapter, "other=" + adapter));
}

TEST_F(Doors, APortAloneIsOneOfThisMachine) {
  const server::HostPort alone = server::parse_host_port("listen", "8001");
  EXPECT_EQ(alone.text(), "127.0.0.1:8001");
  EXPECT_TRUE(alone.is_loopback());
  EXPECT_THAT(run({"serve", model(), "--port", "70000"}).err, HasSubstr("0 to 65535"));
  // Kubernetes sets such a variable of a service that is called strata.
  const server::OptionSource source =
      server::options_from_environment({{"STRATA_PORT", "tcp://10.0.0.1:8000"}});
  EXPECT_TRUE(source.values.empty());
}

TEST_F(Doors, ARecipeTakesOthersSpelling) {
  std::ofstream(root_ + "/recipe.toml") << "learning_rate = 0.02\nbatch-size = 4\n"
                                        << "lr_schedule = \"constant\"\n";
  const Ran ran = run({"train", "model", "--data", "data.jsonl", "--out", "out", "--config",
                       "recipe.toml", "--steps", "3", "--save-config", "saved.toml"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(content(root_ + "/saved.toml"),
              AllOf(HasSubstr("lr = 0.02\n"), HasSubstr("batch-size = 4\n"),
                    HasSubstr("lr-schedule = \"constant\"\n")));
}

TEST_F(Doors, ARunGoesOnWithItsOwnOptionsFromAnyFolder) {
  const Words straight = {
      "train",        "model", "--data",         "data.jsonl:2", "--out", "all",       "--steps",
      "12",           "--lr",  "0.01",           "--rank",       "4",     "--targets", "q_proj",
      "--eval-every", "3",     "--keep-best=off"};
  ASSERT_EQ(run(straight).code, 0);
  // One that ended by a fault of the machine after its first save has nothing but --out to say.
  TrainOptions o = options("part");
  o.data = {root_ + "/data.jsonl:2"};
  o.steps = 12;
  o.lr = 0.01;
  o.targets = "q_proj";
  o.batch_tokens.reset();
  o.micro_tokens = TrainOptions().micro_tokens;
  o.eval_every = 3;
  o.keep_best = false;
  o.save_every = "5";
  EXPECT_TRUE(kill_after(o, 9));
  Surroundings elsewhere;
  elsewhere.folder = "/";
  const Ran ran = run_program({"train", "--resume", "--out", root_ + "/part"}, "", elsewhere);
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("resuming after "));
  expect_same_files("all", "part", {"adapter_model.safetensors", "trainer/state.json"});
  EXPECT_FALSE(fs::exists(root_ + "/part/best"));
  // What is typed counts before it.
  const Ran other =
      run_program({"train", "--resume", "--out", root_ + "/part", "--lr", "0.5"}, "", elsewhere);
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, HasSubstr("lr: was \"0.01\", now \"0.5\""));
}

TEST_F(Doors, OneThreadIsCalledOne) {
  for (const auto& [threads, text] :
       {std::pair("1", ", 1 thread"), std::pair("2", ", 2 threads")}) {
    const Ran ran = run({"train", "model", "--data", "data.jsonl", "--out", "out", "--steps", "1",
                         "--dry-run", "--verbose", "--threads", threads});
    EXPECT_EQ(ran.code, 0) << ran.err;
    EXPECT_THAT(ran.err, ContainsRegex(std::string("CPU path [^\n]*") + text + " *\n"));
  }
}

TEST_F(Doors, ARateOfASweepGoesOnAloneWithItsOwnOptions) {
  const Words rest = {"--data", "data.jsonl", "--steps", "4", "--rank", "4", "--targets", "q_proj"};
  Words sweep = {"train", "model", "--out", "sweep", "--lr", "0.01,2e-2"};
  sweep.insert(sweep.end(), rest.begin(), rest.end());
  ASSERT_EQ(run(sweep).code, 0);
  EXPECT_THAT(content(root_ + "/sweep/recipe.toml"), HasSubstr("lr = \"0.01,2e-2\"\n"));
  const std::string own = content(root_ + "/sweep/lr-2e-2/recipe.toml");
  EXPECT_THAT(own, AllOf(HasSubstr("lr = 0.02\n"), HasSubstr("rank = 4\n")));
  Surroundings elsewhere;
  elsewhere.folder = "/";
  for (const char* folder : {"/sweep/lr-2e-2", "/sweep"}) {
    const Ran ran = run_program({"train", "--resume", "--out", root_ + folder}, "", elsewhere);
    EXPECT_EQ(ran.code, 0) << folder << ": " << ran.err;
  }
  const Ran other = run_program(
      {"train", "--resume", "--out", root_ + "/sweep/lr-2e-2", "--lr", "0.5"}, "", elsewhere);
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, HasSubstr("lr: was \"0.02\", now \"0.5\""));
}

}  // namespace
}  // namespace strata::apps
