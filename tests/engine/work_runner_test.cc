// SPDX-License-Identifier: Apache-2.0
// Many tenants through scheduler and engine together: the bits are those of each tenant alone;
// snapshots are fixed; a fault of one request touches no other.
#include "engine/work_runner.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "engine/adapter_state.h"
#include "engine/lora_specs.h"
#include "scheduler/scheduler.h"
#include "tests/base/temp_dir.h"
#include "tests/engine/runner_house.h"

namespace strata::engine {
namespace {

using strata::testing::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A tenant's whole run: pipelined steps, a snapshot in the middle, samples of it and of the base.
std::vector<api::Command> program(const Engine& engine, int tenant) {
  const std::string model = "m" + std::to_string(tenant);
  const auto seed = static_cast<uint32_t>(100 * tenant);
  std::vector<api::Command> out;
  out.push_back(create(model, {.rank = 1 << (tenant % 4), .seed = seed}));
  int64_t seq = 0;
  for (int step = 0; step < 3; ++step) {
    out.push_back(command(model, ++seq, data(engine, {5 + tenant, 1, 30}, seed + 10)));
    out.push_back(command(model, ++seq, data(engine, {9}, seed + 20)));
    out.push_back(
        command(model, ++seq, api::OptimStep{.adamw = {.lr = 0.01, .grad_clip_norm = 1.0}}));
    if (step == 1) {
      out.push_back(command(model, ++seq,
                            api::SaveForSampler{.snapshot = {"snap " + model}, .ephemeral = true}));
    }
  }
  out.push_back(command(model, ++seq, data(engine, {40}, seed + 30, true)));
  return out;
}

std::vector<api::Command> samples(const Engine& engine, int tenant) {
  const std::string model = "m" + std::to_string(tenant);
  const auto seed = static_cast<uint64_t>(100 * tenant);
  std::vector<api::Command> out;
  out.push_back(sample(engine, "base " + model, 3 + tenant, seed, 2));
  out.push_back(sample(engine, "snap " + model, 70, seed + 1, 3));
  std::get<api::Sample>(out.back().op).snapshot = {"snap " + model};
  std::get<api::Sample>(out.back().op).prompt_logprobs = true;
  return out;
}

// Everything a tenant sees, as numbers.
std::vector<double> numbers(const Server& server, const std::vector<api::Command>& commands) {
  std::vector<double> out;
  for (const api::Command& asked : commands) {
    const auto found = server.posted.find(asked.request.text);
    EXPECT_TRUE(found != server.posted.end() && found->second.size() == 1) << asked.request.text;
    if (found == server.posted.end()) continue;
    const api::Outcome& outcome = found->second[0];
    const auto* failure = std::get_if<api::Failure>(&outcome);
    EXPECT_EQ(failure, nullptr) << asked.request.text << ": " << failure->message;
    if (const auto* pass = std::get_if<api::ForwardBackwardResult>(&outcome)) {
      out.push_back(pass->metrics.at("loss:sum"));
      for (const auto& datum : pass->data)
        out.insert(out.end(), datum.logprobs.begin(), datum.logprobs.end());
    } else if (const auto* step = std::get_if<api::StepResult>(&outcome)) {
      out.push_back(step->grad_norm);
      EXPECT_TRUE(step->stepped);
    } else if (const auto* sampled = std::get_if<api::SampleOutput>(&outcome)) {
      for (const auto& sequence : sampled->sequences) {
        out.insert(out.end(), sequence.tokens.begin(), sequence.tokens.end());
        out.insert(out.end(), sequence.logprobs.begin(), sequence.logprobs.end());
      }
      for (size_t i = 1; i < sampled->prompt_logprobs.size(); ++i)
        out.push_back(static_cast<double>(sampled->prompt_logprobs[i]));
    }
  }
  return out;
}

// Eight tenants train, 32 samples run meanwhile, everything is pipelined and comes in any order:
// each tenant's losses, logprobs, gradient norms and samples have the bits they have alone.
TEST(WorkRunner, EightTenantsTogetherHaveTheBitsOfEachAlone) {
  for (const auto& [model, dtype] : {std::pair{"qwen3", DType::kF32},
                                     {"qwen3", DType::kBF16},
                                     {"deepseek_moe", DType::kBF16},
                                     {"qwen3_5", DType::kBF16}}) {
    constexpr int kTenants = 8;
    std::vector<std::vector<double>> alone;
    for (int tenant = 0; tenant < kTenants; ++tenant) {
      Server server({.model = model, .dtype = dtype});
      std::vector<api::Command> commands = program(*server.engine, tenant);
      for (const api::Command& asked : commands) server.ask(asked);  // one after the other
      for (const api::Command& asked : samples(*server.engine, tenant)) {
        server.ask(asked);
        commands.push_back(asked);
      }
      alone.push_back(numbers(server, commands));
      EXPECT_GT(alone.back().size(), 300u);
    }
    Server server({.model = model,
                   .dtype = dtype,
                   .threads = 2,
                   .options = {.pass_tokens = 64, .prefill_tokens = 32, .page_size = 8}},
                  {}, {.max_sample_rows = 20});
    std::vector<std::vector<api::Command>> commands;
    for (int tenant = 0; tenant < kTenants; ++tenant)
      commands.push_back(program(*server.engine, tenant));
    for (int i = 0; i < 20; ++i)
      server.submit(sample(*server.engine, "filler " + std::to_string(i), 20, 7));
    for (auto& program : commands) server.submit(program[0]);
    for (auto& program : commands) {  // backwards: the scheduler orders
      for (size_t i = program.size(); i-- > 1;) {
        server.submit(program[i]);
        if (i % 5 == 0) server.turn();
      }
    }
    for (int i = 0; i < 6; ++i) server.turn();
    // Samples of the snapshots need them to exist: the client waits for the save.
    const auto saved = [&] {
      for (int tenant = 0; tenant < kTenants; ++tenant) {
        if (!server.posted.contains("m" + std::to_string(tenant) + "-7")) return false;
      }
      return true;
    };
    while (!saved() && server.turn()) {
    }
    for (int tenant = 0; tenant < kTenants; ++tenant) {
      for (const api::Command& asked : samples(*server.engine, tenant)) {
        server.submit(asked);
        commands[static_cast<size_t>(tenant)].push_back(asked);
      }
    }
    server.run();
    for (size_t tenant = 0; tenant < kTenants; ++tenant)
      EXPECT_EQ(numbers(server, commands[tenant]), alone[tenant]) << tenant;
  }
}

TEST(WorkRunner, SnapshotsAreFixedEvictedAndReloaded) {
  TempDir dir;
  for (const auto& [model, ephemeral] :
       {std::pair{"qwen3", false}, {"qwen3", true}, {"qwen3_moe", false}, {"deepseek_moe", true}}) {
    Server server({.model = model}, {}, {.snapshot_bytes = 1});  // room for the newest only
    const std::string at = dir.path() + "/" + model + (ephemeral ? "-e" : "-p");
    server.ask(create("m", {.rank = 4, .seed = 1}));
    std::vector<std::vector<double>> first;
    int64_t seq = 0;
    const auto draw = [&](int snapshot, const std::string& round) {
      api::Command asked = sample(*server.engine, round + std::to_string(snapshot), 12, 3);
      std::get<api::Sample>(asked.op).snapshot = {"s" + std::to_string(snapshot)};
      std::get<api::Sample>(asked.op).snapshot_dir = at + std::to_string(snapshot);
      server.ask(asked);
      return numbers(server, {asked});
    };
    for (int i = 0; i < 3; ++i) {
      server.ask(command("m", ++seq, data(*server.engine, {20}, 4)));
      server.ask(command("m", ++seq, api::OptimStep{.adamw = {.lr = 0.05}}));
      server.ask(command("m", ++seq,
                         api::SaveForSampler{.dir = at + std::to_string(i),
                                             .snapshot = {"s" + std::to_string(i)},
                                             .ephemeral = ephemeral}));
      first.push_back(draw(i, "first "));
      EXPECT_EQ(server.runner.snapshots().size(), 1u);
    }
    EXPECT_NE(first[0], first[1]);
    EXPECT_NE(first[1], first[2]);
    server.ask(command("m", 0, api::UnloadModel{}, "unload"));  // snapshots outlive their model
    EXPECT_TRUE(server.engine->adapters().empty());
    for (int i = 0; i < 3; ++i) EXPECT_EQ(draw(i, "again "), first[static_cast<size_t>(i)]);
    server.scheduler.release({}, {"s2"});
    server.turn();
    EXPECT_EQ(server.runner.snapshots().size(), 0u);
  }
}

// Weights, moments and step count come back exactly; without the optimizer the moments are zero.
class SavedState : public ::testing::TestWithParam<const char*> {};

TEST_P(SavedState, ComesBackExactly) {
  TempDir dir;
  Server server({.model = GetParam()});
  const api::LoraConfig lora = {.rank = 4, .seed = 3, .train_attn = false};
  server.ask(create("a", lora));
  int64_t seq = 0;
  for (int i = 0; i < 2; ++i) {
    server.ask(command("a", ++seq, data(*server.engine, {20}, 4)));
    server.ask(command("a", ++seq, api::OptimStep{.adamw = {.lr = 0.05}}));
  }
  const api::Outcome& saved =
      server.ask(command("a", ++seq, api::SaveState{.dir = dir.path() + "/s"}));
  int64_t bytes = 0;
  for (const auto& file : std::filesystem::directory_iterator(dir.path() + "/s"))
    bytes += static_cast<int64_t>(file.file_size());
  EXPECT_TRUE(std::holds_alternative<api::Saved>(saved));
  EXPECT_EQ(server.saved_bytes, bytes);
  const auto next_steps = [&](const std::string& model, int64_t at) {
    std::vector<api::Command> asked = {
        command(model, at + 1, data(*server.engine, {20}, 9)),
        command(model, at + 2, api::OptimStep{.adamw = {.lr = 0.05}}),
        command(model, at + 3, data(*server.engine, {20}, 9, true))};
    for (const auto& one : asked) server.ask(one);
    return numbers(server, asked);
  };
  const std::vector<double> want = next_steps("a", seq);
  api::Command restored = create("b", lora);
  std::get<api::CreateModel>(restored.op).load_dir = dir.path() + "/s";
  std::get<api::CreateModel>(restored.op).load_optimizer = true;
  server.ask(restored);
  EXPECT_EQ(next_steps("b", 0), want);
  // Into a living model, with a gradient pending that must not survive.
  server.ask(command("a", 7 + 2, data(*server.engine, {33}, 70)));
  server.ask(command("a", 8 + 2, api::LoadState{.dir = dir.path() + "/s", .optimizer = true}));
  EXPECT_EQ(next_steps("a", 10), want);
  server.ask(command("a", 14, api::LoadState{.dir = dir.path() + "/s", .optimizer = false}));
  EXPECT_EQ(server.engine->adapter(api::AdapterSlot{1}).step, 0);
  const std::vector<double> without = next_steps("a", 14);
  EXPECT_EQ(without[0], want[0]);
  EXPECT_NE(without, want);
  // What does not fit is refused and changes nothing.
  server.ask(create("c", {.rank = 8, .seed = 3, .train_attn = false}));
  EXPECT_THAT(server.message(command("c", 1, api::LoadState{.dir = dir.path() + "/s"})),
              HasSubstr("do not fit"));
  server.ask(create("d", {.rank = 4, .seed = 3}));
  EXPECT_THAT(server.message(command("d", 1, api::LoadState{.dir = dir.path() + "/s"})),
              HasSubstr("is missing"));
  server.ask(command("a", 18, api::SaveForSampler{.dir = dir.path() + "/w"}));
  EXPECT_THAT(
      server.message(command("a", 19, api::LoadState{.dir = dir.path() + "/w", .optimizer = true})),
      HasSubstr("no optimizer state"));
  const size_t before = server.engine->adapters().size();
  api::Command broken = create("e", {.rank = 2});
  std::get<api::CreateModel>(broken.op).load_dir = dir.path() + "/s";
  EXPECT_THAT(server.message(broken), HasSubstr("do not fit"));
  EXPECT_EQ(server.engine->adapters().size(), before);
  EXPECT_EQ(server.book.num_models(), static_cast<int64_t>(before));
}

INSTANTIATE_TEST_SUITE_P(All, SavedState, ::testing::Values("qwen3", "qwen3_moe", "deepseek_moe"));

TEST(WorkRunner, TrainFlagsCoverEveryProjectionOfExpertsAndLatentAttention) {
  const Server server({.model = "deepseek_moe"});
  const auto count = [&](const api::LoraConfig& lora) {
    return lora_specs(server.engine->config(), lora).size();
  };
  const size_t all =
      model::make_adapter_specs(server.engine->config(), {"all-linear"}, 8, 32.0).size();
  // q_a, q_b, kv_a, kv_b and o of both layers
  EXPECT_EQ(count({.rank = 8, .train_mlp = false, .train_unembed = false}), 10u);
  EXPECT_EQ(count({.rank = 8, .train_attn = false, .train_unembed = false}), all - 10);
  EXPECT_EQ(count({.rank = 8}), all + 1);
}

TEST(WorkRunner, TrainFlagsChooseTheModules) {
  Server server;
  server.ask(create("m", {.rank = 2, .train_attn = false, .train_mlp = false}));
  const auto& modules = server.engine->adapter(api::AdapterSlot{1}).modules();
  ASSERT_EQ(modules.size(), 1u);
  EXPECT_EQ(modules[0].path, "lm_head");
  EXPECT_EQ(modules[0].scale, 16.0f);
}

TEST(WorkRunner, LimitsSayWhatIsInUseAndWhatToRaise) {
  Server server({}, {.max_models = 2, .max_models_per_tenant = 1, .max_rank = 8});
  EXPECT_THAT(server.message(create("a", {.rank = 16})), HasSubstr("--max-rank"));
  EXPECT_THAT(server.message(create("b", {.rank = int64_t{1} << 60})), HasSubstr("--max-rank"));
  EXPECT_EQ(server.message(create("c", {.rank = 8})), "");
  api::Command same = create("c2", {.rank = 8});
  same.tenant = {"tenant of c"};
  EXPECT_THAT(server.message(same), HasSubstr("--max-adapters-per-tenant"));
  EXPECT_EQ(server.message(create("d", {.rank = 8})), "");
  EXPECT_THAT(server.message(create("e", {.rank = 8})),
              AllOf(HasSubstr("--max-adapters 2"), HasSubstr("2 models of 2 sessions")));
  server.ask(command("c", 0, api::UnloadModel{}, "unload"));
  EXPECT_EQ(server.message(create("f", {.rank = 8})), "");
  Server small({}, {.max_bytes = 1000});
  EXPECT_THAT(small.message(create("a", {.rank = 8})), HasSubstr("--memory"));
}

TEST(WorkRunner, ATenantThatTakesAllItCanLeavesTheOthersModels) {
  const auto of = [](const char* tenant, const std::string& model, int64_t rank) {
    api::Command command = create(model, {.rank = rank});
    command.tenant = {tenant};
    return command;
  };
  for (const int64_t num_tenants : {3, 300}) {
    Server server({}, {.max_models = 12});
    for (SharedLimit limit : server.book.limits()) limit.set_num_tenants(num_tenants);
    int64_t taken = 0;
    std::string told;
    while ((told = server.message(of("greedy", fmt::format("g{}", taken), 1))).empty()) ++taken;
    EXPECT_THAT(told, AllOf(HasSubstr("for other tenants"), HasSubstr("--max-adapters 12")));
    EXPECT_GE(taken, 6);
    EXPECT_LE(taken, 8);
    for (const char* other : {"a", "b"}) {
      EXPECT_EQ(server.message(of(other, other, 1)), "") << num_tenants;
    }
    // What comes free is anybody's again.
    api::Command unload = command("g0", 0, api::UnloadModel{}, "unload");
    unload.tenant = {"greedy"};
    server.ask(unload);
    EXPECT_EQ(server.message(of("b", "b2", 1)), "") << num_tenants;
  }
  // Likewise of bytes: few models of a high rank.
  Server one;
  one.ask(create("m", {.rank = 8}));
  const int64_t bytes = one.book.num_bytes();
  Server server({}, {.max_bytes = 8 * bytes});
  for (SharedLimit limit : server.book.limits()) limit.set_num_tenants(2);
  for (int i = 0; i < 6; ++i)
    EXPECT_EQ(server.message(of("greedy", fmt::format("g{}", i), 8)), "") << i;
  EXPECT_THAT(server.message(of("greedy", "g", 8)),
              AllOf(HasSubstr("for other tenants"), HasSubstr("--memory")));
  EXPECT_EQ(server.message(of("a", "a1", 8)), "");
  EXPECT_EQ(server.message(of("a", "a2", 8)), "");
  EXPECT_THAT(server.message(of("a", "a3", 8)), HasSubstr("0 are left"));
}

// A faulty request is told with its datum; its own gradients and everyone else's are as without it.
TEST(WorkRunner, AFaultyRequestLeavesNoTrace) {
  Server server;
  for (const char* model : {"good", "bad"}) server.ask(create(model, {.rank = 4, .seed = 1}));
  const auto refuse = [&](int64_t seq, auto change, const std::string& want) {
    api::ForwardBackward faulty = data(*server.engine, {20, 10, 5}, 3);
    change(faulty);
    server.submit(command("bad", seq, faulty));
    server.submit(command("good", seq, data(*server.engine, {20}, 3)));
    server.run();
    const auto& outcome = server.posted["bad-" + std::to_string(seq)].at(0);
    const auto* failure = std::get_if<api::Failure>(&outcome);
    ASSERT_NE(failure, nullptr) << want;
    EXPECT_THAT(failure->message, HasSubstr(want));
    EXPECT_EQ(failure->category, api::FaultCategory::kUser);
    EXPECT_TRUE(std::holds_alternative<api::ForwardBackwardResult>(
        server.posted["good-" + std::to_string(seq)].at(0)));
  };
  refuse(1, [](auto& f) { f.data[2].tokens[1] = 1 << 30; }, "data[2].tokens[1]");
  refuse(2, [](auto& f) { f.data[1].targets[0] = -3; }, "data[1].targets[0]");
  refuse(3, [](auto& f) { weights_of(f.data[1])[4] = NAN; }, "data[1].weights[4]");
  refuse(4, [](auto& f) { weights_of(f.data[0]).pop_back(); }, "data[0].weights");
  refuse(5, [](auto& f) { f.data[0].tokens.clear(); }, "data[0].tokens");
  refuse(6, [](auto& f) { f.loss.name = api::LossName::kPpo; }, "data[0].logprobs");
  refuse(7, [](auto& f) { f.data.clear(); }, "data: got none");
  refuse(8, [](auto& f) { f.data[1].tokens.resize(1 << 20, 1); }, "context window");
  refuse(
      9,
      [](auto& f) {
        f.loss.name = api::LossName::kGspo;
        for (auto& d : f.data) {
          weights_of(d).clear();
          for (const api::LossInput input : api::row_of(f.loss.name).inputs)
            d.inputs[input].assign(d.tokens.size(), 0.0f);
        }
      },
      "data[0].sequence_ratio_mask");
  const auto& bad = std::get<api::StepResult>(server.ask(command("bad", 10, api::OptimStep{})));
  EXPECT_FALSE(bad.stepped);
  const auto& good = std::get<api::StepResult>(server.ask(command("good", 10, api::OptimStep{})));
  EXPECT_TRUE(good.stepped);
}

TEST(WorkRunner, SamplesFollowTheServersRules) {
  Server server({}, {}, {});
  api::Command asked = sample(*server.engine, "n", 9, 5, 4);
  auto& ask = std::get<api::Sample>(asked.op);
  ask.prompt_logprobs = true;
  ask.first_prompt_logprob = std::ssize(ask.prompt) - 3;
  ask.topk_prompt_logprobs = 2;
  ask.topk_sample_logprobs = 3;
  const auto got = std::get<api::SampleOutput>(server.ask(asked));
  ASSERT_EQ(got.sequences.size(), 4u);
  EXPECT_NE(got.sequences[0].tokens, got.sequences[1].tokens);
  for (const auto& sequence : got.sequences) {
    EXPECT_EQ(sequence.tokens.size(), 7u);
    EXPECT_EQ(sequence.logprobs.size(), 7u);
    EXPECT_EQ(sequence.topk.ids.size(), 21u);
    EXPECT_FALSE(sequence.stopped);
  }
  ASSERT_EQ(got.prompt_logprobs.size(), 9u);
  for (size_t i = 0; i < 9; ++i) {
    EXPECT_EQ(std::isnan(got.prompt_logprobs[i]), i < 6);
    EXPECT_EQ(got.prompt_topk.logprobs[2 * i] == api::kNoTopk, i < 6);
    if (i >= 6) {
      EXPECT_GE(got.prompt_topk.logprobs[2 * i], got.prompt_topk.logprobs[2 * i + 1]);
    }
  }
  asked.request = {"again"};
  EXPECT_EQ(std::get<api::SampleOutput>(server.ask(asked)).sequences[3].tokens,
            got.sequences[3].tokens);
  // A stop id ends the sample and is part of it.
  asked.request = {"stop id"};
  ask.stop = {got.sequences[2].tokens[4]};
  const auto stopped = std::get<api::SampleOutput>(server.ask(asked)).sequences[2];
  EXPECT_TRUE(stopped.stopped);
  EXPECT_EQ(stopped.tokens.back(), ask.stop[0]);
  EXPECT_LE(stopped.tokens.size(), 5u);
  // So does a stop text, which may span tokens; the token that completes it is the last.
  asked.request = {"stop text"};
  ask.stop.clear();
  const std::vector<int32_t>& tokens = got.sequences[1].tokens;
  const std::string whole = server.tokenizer.decode(std::span(tokens).first(4));
  ask.stop_texts = {"never said", whole};
  const auto texted = std::get<api::SampleOutput>(server.ask(asked)).sequences[1];
  if (server.tokenizer.decode(std::span(tokens).first(3)).find(whole) == std::string::npos) {
    EXPECT_TRUE(texted.stopped);
    EXPECT_EQ(texted.tokens, std::vector<int32_t>(tokens.begin(), tokens.begin() + 4));
  }
  asked.request = {"too long"};
  ask.max_tokens = 1 << 20;
  EXPECT_THAT(server.message(asked),
              HasSubstr("exceeds the model's context window: 9 + 1048576 >"));
  asked.request = {"bad id"};
  ask.max_tokens = 2;
  ask.prompt[3] = -1;
  EXPECT_THAT(server.message(asked), HasSubstr("tokens[3]"));
}

// Several samples of a prompt, which begin from copies of one state, beside those of others: each
// has the bits it has where one row runs at a time, and of a sequence that is read anew.
TEST(WorkRunner, SamplesOfOnePromptWithStatesAreThoseOfEachAlone) {
  for (const char* model : {"qwen3_5", "qwen3_5_moe"}) {
    Server one_by_one({.model = model}, {}, {.max_sample_rows = 1});
    Server together(
        {.model = model, .threads = 2, .options = {.prefill_tokens = 32, .page_size = 8}}, {},
        {.max_sample_rows = 9});
    std::vector<api::Command> commands;
    for (const int64_t prompt : {1, 8, 63, 64, 70, 130}) {
      commands.push_back(sample(*together.engine, "prompt of " + std::to_string(prompt), prompt,
                                static_cast<uint64_t>(prompt), 4));
      auto& ask = std::get<api::Sample>(commands.back().op);
      ask.temperature = 1;  // logprobs are then the model's own
      ask.top_k = 0;
      together.submit(commands.back());
    }
    together.run();
    for (const api::Command& asked : commands) {
      const std::string& name = asked.request.text;
      const auto alone = std::get<api::SampleOutput>(one_by_one.ask(asked));
      const auto got = std::get<api::SampleOutput>(together.posted.at(name).at(0));
      ASSERT_EQ(got.sequences.size(), 4u);
      EXPECT_NE(got.sequences[0].tokens, got.sequences[1].tokens) << name;
      for (size_t i = 0; i < 4; ++i) {
        const auto& tokens = got.sequences[i].tokens;
        EXPECT_EQ(tokens, alone.sequences[i].tokens) << model << " " << name << " " << i;
        EXPECT_EQ(got.sequences[i].logprobs, alone.sequences[i].logprobs) << model << " " << name;
        api::Command again = asked;
        again.request = {name + " read anew " + std::to_string(i)};
        auto& whole = std::get<api::Sample>(again.op);
        whole.prompt.insert(whole.prompt.end(), tokens.begin(), tokens.end());
        whole.num_samples = 1;
        whole.prompt_logprobs = true;
        const auto read = std::get<api::SampleOutput>(one_by_one.ask(again)).prompt_logprobs;
        EXPECT_EQ(std::vector<float>(read.end() - std::ssize(tokens), read.end()),
                  got.sequences[i].logprobs)
            << model << " " << name << " " << i;
      }
    }
    EXPECT_EQ(together.engine->state_pool().num_free(), together.engine->state_pool().num_slabs());
  }
}

TEST(WorkRunner, CancelledSamplesGiveTheirPagesBack) {
  Server server({.options = {.page_size = 4}}, {}, {.max_sample_rows = 2});
  server.submit(sample(*server.engine, "half joined", 9, 5, 4));
  server.turn();
  EXPECT_EQ(server.runner.capacity().running_samples, 2);
  server.scheduler.end_session({"session"}, "the session was finished", 0.0);
  server.run();
  EXPECT_EQ(server.runner.capacity().free_pages, int64_t{1} << 40);
}

// More samples than the cache holds: they wait for pages, and all are answered.
TEST(WorkRunner, SamplesWaitForPages) {
  Server server({.options = {.page_size = 4, .max_pages = 12}});
  for (int i = 0; i < 10; ++i)
    server.submit(sample(*server.engine, "s" + std::to_string(i), 13, static_cast<uint64_t>(i), 2));
  server.submit(sample(*server.engine, "whale", 60, 1));
  server.run();
  EXPECT_LE(server.engine->kv_pool().num_pages(), 12);
  for (int i = 0; i < 10; ++i)
    EXPECT_TRUE(
        std::holds_alternative<api::SampleOutput>(server.posted["s" + std::to_string(i)][0]));
  EXPECT_THAT(std::get<api::Failure>(server.posted["whale"][0]).message, HasSubstr("--memory"));
}

}  // namespace
}  // namespace strata::engine
