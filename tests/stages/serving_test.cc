// SPDX-License-Identifier: Apache-2.0
// A served model in stages: what eight tenants train, sample, save and load through the scheduler
// has the bits, and the files the bytes, of one stage. That the tests of one stage hold in stages
// is shown by a rerun of them (tests/engine/CMakeLists.txt).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>

#include "backend/thread_comm.h"
#include "tests/base/temp_dir.h"
#include "tests/engine/runner_house.h"

namespace strata::engine {
namespace {

using strata::testing::TempDir;
using ::testing::HasSubstr;

constexpr int kTenants = 8;

std::string model_of(int tenant) { return "m" + std::to_string(tenant); }

// Everything that was answered, by request: numbers, bit by bit.
std::map<std::string, std::vector<double>> answers(const Server& server) {
  std::map<std::string, std::vector<double>> out;
  for (const auto& [request, outcomes] : server.posted) {
    EXPECT_EQ(outcomes.size(), 1u) << request;
    std::vector<double>& numbers = out[request];
    const api::Outcome& outcome = outcomes.at(0);
    const auto* failure = std::get_if<api::Failure>(&outcome);
    EXPECT_EQ(failure, nullptr) << request << ": " << failure->message;
    if (const auto* pass = std::get_if<api::ForwardBackwardResult>(&outcome)) {
      numbers.push_back(pass->metrics.at("loss:sum"));
      for (const auto& datum : pass->data)
        numbers.insert(numbers.end(), datum.logprobs.begin(), datum.logprobs.end());
    } else if (const auto* step = std::get_if<api::StepResult>(&outcome)) {
      numbers = {step->stepped ? 1.0 : 0.0, step->grad_norm};
    } else if (const auto* sampled = std::get_if<api::SampleOutput>(&outcome)) {
      for (const auto& sequence : sampled->sequences) {
        numbers.insert(numbers.end(), sequence.tokens.begin(), sequence.tokens.end());
        numbers.insert(numbers.end(), sequence.logprobs.begin(), sequence.logprobs.end());
      }
      for (size_t i = 1; i < sampled->prompt_logprobs.size(); ++i)
        numbers.push_back(static_cast<double>(sampled->prompt_logprobs[i]));
    }
  }
  return out;
}

// What was kept of prefixes has pages yet.
void run(Server& server) {
  while (server.turn()) {
  }
  EXPECT_TRUE(server.scheduler.idle());
}

void train(Server& server, int tenant, int64_t& seq, uint32_t seed) {
  const std::string model = model_of(tenant);
  server.submit(command(model, ++seq, data(*server.engine, {5 + tenant, 40, 70, 9}, seed)));
  server.submit(command(model, ++seq, data(*server.engine, {80, 12}, seed + 1)));
  server.submit(
      command(model, ++seq, api::OptimStep{.adamw = {.lr = 0.01, .grad_clip_norm = 1.0}}));
}

void draw(Server& server, const std::string& request, const api::SnapshotId& snapshot,
          const std::string& dir, uint64_t seed) {
  api::Command asked = sample(*server.engine, request, seed % 2 == 0 ? 70 : 6, seed, 3);
  auto& op = std::get<api::Sample>(asked.op);
  op.snapshot = snapshot;
  op.snapshot_dir = dir;
  op.prompt_logprobs = true;
  server.submit(asked);
}

// All tenants at once: two steps each, all kinds of saves, samples of what was saved, which has to
// be read again, and of the base; then a load into a fresh model and a step of that.
std::map<std::string, std::vector<double>> serve(Server& server, const std::string& dir) {
  std::vector<int64_t> seq(kTenants, 0);
  const auto at = [&](int tenant, const std::string& name) {
    return dir + "/" + model_of(tenant) + "-" + name;
  };
  for (int t = 0; t < kTenants; ++t) {
    const auto seed = static_cast<uint64_t>(t);
    server.submit(create(model_of(t), {.rank = 1 << (t % 4), .seed = seed}));
    for (uint32_t step = 0; step < 2; ++step)
      train(server, t, seq[static_cast<size_t>(t)], 100 * static_cast<uint32_t>(t) + 10 * step);
    draw(server, "base " + model_of(t), {}, "", seed);
  }
  run(server);
  for (int t = 0; t < kTenants; ++t) {
    int64_t& next = seq[static_cast<size_t>(t)];
    const std::string model = model_of(t);
    server.submit(command(model, ++next, api::SaveState{.dir = at(t, "state")}));
    server.submit(
        command(model, ++next, api::SaveForSampler{.dir = at(t, "snapshot"), .snapshot = {model}}));
    server.submit(command(
        model, ++next,
        api::SaveForSampler{
            .dir = at(t, "fleeting"), .snapshot = {model + " fleeting"}, .ephemeral = true}));
    server.submit(
        command(model, ++next, api::SaveForSampler{.dir = at(t, "export"), .for_export = true}));
  }
  run(server);
  for (int t = 0; t < kTenants; ++t) {
    const std::string model = model_of(t);
    draw(server, "of " + model, {model}, at(t, "snapshot"), 3);
    draw(server, "of fleeting " + model, {model + " fleeting"}, at(t, "fleeting"), 4);
    api::Command restored = create(model + "b", {.rank = 1 << (t % 4), .seed = 77});
    auto& op = std::get<api::CreateModel>(restored.op);
    op.load_dir = at(t, "state");
    op.load_optimizer = t % 2 == 0;
    server.submit(restored);
    server.submit(command(model + "b", 1, data(*server.engine, {30, 90}, 5)));
    server.submit(command(model + "b", 2, api::OptimStep{.adamw = {.lr = 0.01}}));
    server.submit(command(model + "b", 3, api::SaveState{.dir = at(t, "again")}));
  }
  run(server);
  return answers(server);
}

std::map<std::string, std::string> files_below(const std::string& dir) {
  std::map<std::string, std::string> out;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir)) {
    if (!entry.is_regular_file()) continue;
    out[std::filesystem::relative(entry.path(), dir).string()] =
        strata::testing::read_bytes(entry.path().string());
  }
  return out;
}

class ServedStages : public ::testing::TestWithParam<std::tuple<std::string, DType, int>> {};

using Answers = std::map<std::string, std::vector<double>>;

void expect_same_answers(const Answers& got, const Answers& want) {
  EXPECT_EQ(got.size(), want.size());
  for (const auto& [request, numbers] : want) {
    const auto found = got.find(request);
    ASSERT_NE(found, got.end()) << request;
    EXPECT_EQ(found->second, numbers) << request;
  }
}

void expect_same_files(const std::string& dir, const std::string& of_whole) {
  const auto want_files = files_below(of_whole);
  EXPECT_GE(want_files.size(), size_t{kTenants} * 11);
  const auto got_files = files_below(dir);
  EXPECT_EQ(got_files.size(), want_files.size());
  for (const auto& [name, bytes] : want_files) {
    const auto found = got_files.find(name);
    ASSERT_NE(found, got_files.end()) << name;
    EXPECT_TRUE(found->second == bytes) << name;
  }
}

// How processes have a model.
struct Division {
  int pipeline = 1;
  StageShares shares = {};
  bool breaks_in = false;  // samples on training passes
};

// As a server that the first of several processes is, here as threads that share nothing: each has
// a part of the model, and does what the first one tells it.
Answers serve_over_processes(const TinyEngine& setup, const RunnerOptions& options,
                             const Division& division, const std::string& dir) {
  Answers got;
  run_ranks(division.pipeline * division.shares.tensor * division.shares.expert, [&](Comm& comm) {
    Server server(setup, comm, {}, options, division.shares);
    if (comm.rank() > 0)
      return follow_turns(comm, [&](api::BaseId) -> WorkRunner& { return server.runner; });
    server.breaks_in = division.breaks_in;
    got = serve(server, dir);
    EXPECT_EQ(server.num_breaks > 20, division.breaks_in) << server.num_breaks;
    server.turns->end();
  });
  return got;
}

TEST_P(ServedStages, GiveTheBitsAndTheFilesOfOne) {
  const auto [model, dtype, num_stages] = GetParam();
  const TinyEngine setup = {.model = model,
                            .dtype = dtype,
                            .options = {.pass_tokens = 128, .prefill_tokens = 32, .page_size = 8}};
  // Sampler weights have space for few, so that others are written and read again.
  const RunnerOptions options = {.snapshot_bytes = 1, .prefix_cache = true};
  TempDir whole_dir, dir;
  Server whole(setup, {}, options, 1);
  Server staged(setup, {}, options, num_stages);
  ASSERT_EQ(staged.stages->size(), static_cast<size_t>(num_stages));
  const Answers want = serve(whole, whole_dir.path());
  expect_same_answers(serve(staged, dir.path()), want);
  expect_same_files(dir.path(), whole_dir.path());
  for (const bool breaks_in : {false, true}) {
    SCOPED_TRACE(breaks_in);
    TempDir processes_dir;
    const Division division = {.pipeline = num_stages, .breaks_in = breaks_in};
    expect_same_answers(serve_over_processes(setup, options, division, processes_dir.path()), want);
    expect_same_files(processes_dir.path(), whole_dir.path());
  }
}

// The same where each process has a part of every matrix, and where there are stages too.
TEST(ServedStages, ProcessesThatDivideMatricesGiveTheBitsAndTheFilesOfOne) {
  for (const char* const model : {"qwen2", "qwen3_moe"}) {
    const TinyEngine setup = {
        .model = model, .options = {.pass_tokens = 128, .prefill_tokens = 32, .page_size = 8}};
    const RunnerOptions options = {.snapshot_bytes = 1, .prefix_cache = true};
    TempDir whole_dir;
    Server whole(setup, {}, options, 1);
    const Answers want = serve(whole, whole_dir.path());
    for (const Division& division :
         {Division{.shares = {.tensor = 2}}, Division{.shares = {.tensor = 2}, .breaks_in = true},
          Division{.pipeline = 2, .shares = {.tensor = 2}, .breaks_in = true}}) {
      SCOPED_TRACE(::testing::Message() << model << " pipeline=" << division.pipeline << " breaks "
                                        << division.breaks_in);
      TempDir dir;
      expect_same_answers(serve_over_processes(setup, options, division, dir.path()), want);
      expect_same_files(dir.path(), whole_dir.path());
    }
  }
}

// And where each has some of the experts: of passes that are dealt out, with fewer sequences than
// ranks too, and of samples, which all of them run.
TEST(ServedStages, ProcessesThatDivideExpertsGiveTheBitsAndTheFilesOfOne) {
  for (const auto& [model, dtype, experts] :
       {std::tuple("qwen3_moe", DType::kF32, 2), std::tuple("deepseek_moe", DType::kBF16, 4),
        std::tuple("qwen3_5_moe", DType::kBF16, 3)}) {
    const TinyEngine setup = {.model = model,
                              .dtype = dtype,
                              .options = {.pass_tokens = 64, .prefill_tokens = 32, .page_size = 8}};
    const RunnerOptions options = {.snapshot_bytes = 1, .prefix_cache = true};
    TempDir whole_dir;
    Server whole(setup, {}, options, 1);
    const Answers want = serve(whole, whole_dir.path());
    for (const Division& division :
         {Division{.shares = {.expert = experts}, .breaks_in = true},
          Division{.pipeline = 2, .shares = {.expert = 2}, .breaks_in = true}}) {
      SCOPED_TRACE(::testing::Message() << model << " pipeline=" << division.pipeline
                                        << " expert=" << division.shares.expert);
      TempDir dir;
      expect_same_answers(serve_over_processes(setup, options, division, dir.path()), want);
      expect_same_files(dir.path(), whole_dir.path());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ServedStages,
                         ::testing::Values(std::tuple{"qwen3", DType::kF32, 2},
                                           std::tuple{"qwen3", DType::kBF16, 2},
                                           std::tuple{"qwen3_5", DType::kBF16, 3},
                                           std::tuple{"deepseek_moe", DType::kBF16, 2},
                                           std::tuple{"gemma3", DType::kF32, 4}));

// The same where it is another process's.
TEST(ServedStages, AProcessThatFailsEndsItsPassAlone) {
  Server whole({}, {}, {}, 1);
  whole.ask(create("m", {.rank = 4, .seed = 1}));
  const auto next = [](Server& server, int64_t seq) {
    server.submit(command("m", seq, data(*server.engine, {40, 50}, 3)));
    server.submit(command("m", seq + 1, api::OptimStep{.adamw = {.lr = 0.05}}));
    server.submit(sample(*server.engine, "s" + std::to_string(seq), 12, 3, 2));
    server.run();
  };
  next(whole, 1);
  next(whole, 3);
  std::atomic<int> faulty = -1;
  const auto limit_pass = [&](Server& server, int rank) {
    const int64_t bytes = faulty == rank ? 1 : 0;
    server.engine->set_limits(server.engine->options().pass_tokens, 1 << 20, 0, bytes);
  };
  run_ranks(2, [&](Comm& comm) {
    Server server({}, comm);
    if (comm.rank() > 0) {
      return follow_turns(comm, [&](api::BaseId) -> WorkRunner& {
        limit_pass(server, comm.rank());
        return server.runner;
      });
    }
    server.ask(create("m", {.rank = 4, .seed = 1}));
    next(server, 1);
    for (int rank = 0; rank < comm.size(); ++rank) {
      faulty = rank;
      limit_pass(server, 0);
      const std::string told =
          server.message(command("m", 3 + rank, data(*server.engine, {40, 50}, 3), "fails"));
      EXPECT_THAT(told, HasSubstr("the gradient of model m was dropped")) << rank;
      EXPECT_FALSE(server.engine->adapter(api::AdapterSlot{1}).has_gradient);
      server.posted.erase("fails");
    }
    faulty = -1;
    limit_pass(server, 0);
    // As the third and fourth of the whole model, which nothing failed before.
    server.submit(command("m", 5, data(*server.engine, {40, 50}, 3), "m-3"));
    server.submit(command("m", 6, api::OptimStep{.adamw = {.lr = 0.05}}, "m-4"));
    server.submit(sample(*server.engine, "s3", 12, 3, 2));
    server.run();
    expect_same_answers(answers(server), answers(whole));
    server.turns->end();
  });
}

// A rank's Comm that fails once it has sent so many messages more.
class FailingComm : public Comm {
 public:
  explicit FailingComm(Comm& all) : all_(all) {}
  void fail_after(int64_t messages) { left_ = messages; }
  [[nodiscard]] int rank() const override { return all_.rank(); }
  [[nodiscard]] int size() const override { return all_.size(); }
  void send_bytes(int to, int64_t tag, const void* bytes, int64_t count) override {
    if (left_ >= 0 && --left_ < 0) throw Error(ErrorCode::kIo, "the link has failed");
    all_.send_bytes(to, tag, bytes, count);
  }
  void receive_bytes(int from, int64_t tag, void* bytes, int64_t count) override {
    all_.receive_bytes(from, tag, bytes, count);
  }
  std::optional<RankFailure> settle(const std::optional<RankFailure>& own) override {
    left_ = -1;
    return all_.settle(own);
  }
  [[nodiscard]] Comm& breaking() override { return all_.breaking(); }
  void set_breaks(const Interruption* breaks) override { all_.set_breaks(breaks); }
  void ask_for_break() override { all_.ask_for_break(); }
  [[nodiscard]] int64_t num_breaks_asked() const override { return all_.num_breaks_asked(); }

 private:
  Comm& all_;
  int64_t left_ = -1;  // -1: it does not fail
};

// Where ranks exchange rows of experts and gradients in the midst of a pass, and one of them fails
// at some of these messages, forward or backward.
TEST(ServedStages, AnExpertRankThatFailsEndsItsPassAlone) {
  const TinyEngine setup = {.model = "qwen3_moe"};
  const auto next = [](Server& server, int64_t& seq, const std::string& request) {
    server.submit(command("m", ++seq, data(*server.engine, {40, 50, 30}, 3), "data " + request));
    server.submit(command("m", ++seq, api::OptimStep{.adamw = {.lr = 0.05}}, "step " + request));
    server.submit(sample(*server.engine, "sample " + request, 12, 3, 2));
    server.run();
  };
  Server whole(setup, {}, {}, 1);
  whole.ask(create("m", {.rank = 4, .seed = 1}));
  int64_t seq_of_whole = 0;
  next(whole, seq_of_whole, "1");
  next(whole, seq_of_whole, "2");
  struct {
    std::atomic<int> rank = -1;
    std::atomic<int64_t> messages = 0;
  } faulty;
  run_ranks(3, [&](Comm& comm) {
    FailingComm failing(comm);
    Server server(setup, failing, {}, {}, {.expert = 3});
    const auto begin_to_fail = [&] {
      if (faulty.rank == comm.rank()) failing.fail_after(faulty.messages);
    };
    if (comm.rank() > 0) {
      return follow_turns(failing, [&](api::BaseId) -> WorkRunner& {
        begin_to_fail();
        return server.runner;
      });
    }
    server.ask(create("m", {.rank = 4, .seed = 1}));
    int64_t seq = 0;
    next(server, seq, "1");
    for (int rank = 0; rank < comm.size(); ++rank) {
      for (const int64_t messages : {12, 40}) {
        SCOPED_TRACE(::testing::Message() << "rank " << rank << " after " << messages);
        faulty.messages = messages;
        faulty.rank = rank;
        begin_to_fail();
        const std::string told =
            server.message(command("m", ++seq, data(*server.engine, {40, 50, 30}, 3), "fails"));
        faulty.rank = -1;
        EXPECT_THAT(told, HasSubstr("the link has failed"));
        EXPECT_THAT(told, HasSubstr("the gradient of model m was dropped"));
        EXPECT_FALSE(server.engine->adapter(api::AdapterSlot{1}).has_gradient);
        server.posted.erase("fails");
      }
    }
    next(server, seq, "2");
    expect_same_answers(answers(server), answers(whole));
    server.turns->end();
  });
}

// A stage that fails in the midst of a pass, for which others wait: what ran with it is answered
// with the fault and has no gradient on any stage; the next pass and samples are as if nothing had
// been.
TEST(ServedStages, AStageThatFailsEndsItsPassAlone) {
  Server whole({}, {}, {}, 1), staged({}, {}, {}, 2);
  const auto next = [](Server& server, int64_t seq) {
    server.submit(command("m", seq, data(*server.engine, {40, 50}, 3)));
    server.submit(command("m", seq + 1, api::OptimStep{.adamw = {.lr = 0.05}}));
    server.submit(sample(*server.engine, "s" + std::to_string(seq), 12, 3, 2));
    server.run();
  };
  for (Server* server : {&whole, &staged}) {
    server->ask(create("m", {.rank = 4, .seed = 1}));
    next(*server, 1);
  }
  for (size_t faulty = 0; faulty < 2; ++faulty) {
    const int64_t seq = 3 + 3 * static_cast<int64_t>(faulty);
    // The stage finds when its forward begins that it may take nothing.
    Engine& stage = staged.stages->engine(faulty);
    const int64_t tokens = stage.options().pass_tokens;
    const api::AdapterSlot slot{1};
    stage.set_limits(tokens, 1 << 20, 0, /*pass_bytes=*/1);
    const std::string told = staged.message(command("m", seq, data(*staged.engine, {40, 50}, 3)));
    EXPECT_THAT(told, HasSubstr("the gradient of model m was dropped")) << faulty;
    staged.stages->for_adapter(
        slot, [](const model::LoraAdapter& part) { EXPECT_FALSE(part.has_gradient); });
    stage.set_limits(tokens, 1 << 20, 0, /*pass_bytes=*/0);
    whole.ask(command("m", seq, api::OptimStep{}));
    next(whole, seq + 1);
    next(staged, seq + 1);
    const auto want = answers(whole);
    staged.posted.erase("m-" + std::to_string(seq));
    for (const auto& [request, numbers] : answers(staged))
      EXPECT_EQ(numbers, want.at(request)) << request;
  }
}

}  // namespace
}  // namespace strata::engine
