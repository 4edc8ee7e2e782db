// SPDX-License-Identifier: Apache-2.0
// The cache of prefixes: what it finds is what a model of it written here says, and no answer
// depends on it.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "tests/engine/prefix_house.h"

namespace strata::engine {
namespace {

// One request alone, from its prompt to its end; the tokens that it finds.
int64_t found_alone(CacheModel& model, const CacheModel::Owner& owner, const Tokens& prompt,
                    const Tokens& sampled, int64_t prefill) {
  CacheModel::Row row = {.owner = owner};
  const int64_t size = std::ssize(prompt);
  const int64_t found = model.begin(row, prompt, size);
  Tokens all = prompt;
  all.insert(all.end(), sampled.begin(), sampled.end());
  while (row.read < std::ssize(all) - 1) {
    const int64_t stop =
        model.has_states && row.read < model.shared(size) ? model.shared(size) : size;
    const int64_t end = row.read < size ? std::min(row.read + prefill, stop) : row.read + 1;
    model.cover(row, end);
    model.note(row, first_of(all, end));
  }
  model.end(row, all);
  return found;
}

class PrefixCaches : public testing::TestWithParam<Family> {};

// One request after the other, of three tenants, in a pool of a tenth of what they leave.
TEST_P(PrefixCaches, FindWhatAModelOfThemSays) {
  const char* name = GetParam().model;
  Server probe({.model = name, .options = {.page_size = kPage}});
  const model::CacheLayout& layout = probe.engine->cache_layout();
  const int64_t page = layout.page_size();
  const bool has_states = layout.state_bytes() > 0;
  const int64_t max_pages = 12;
  const int64_t max_states = has_states ? 7 : 0;
  const int64_t prefill = 2 * page + 3;
  const EngineOptions options{.prefill_tokens = prefill,
                              .page_size = kPage,
                              .max_pages = max_pages,
                              .max_states = max_states};
  Server with({.model = name, .options = options}, {}, {.prefix_cache = true});
  Server without({.model = name, .options = options});
  CacheModel model = model_of(*with.engine);
  EXPECT_EQ(model.window > 0, GetParam().has_window);
  Drawn draw{7};
  const int64_t vocab = with.engine->config().vocab_size;
  std::map<std::string, std::vector<Tokens>> said;
  int64_t all_found = 0, needed = 0;
  for (int64_t i = 0; i < 60; ++i) {
    const std::string tenant = "tenant " + std::to_string(draw(3));
    std::vector<Tokens>& before = said[tenant];
    Tokens prompt;
    if (!before.empty() && draw(4) > 0) {
      const Tokens& other = before[static_cast<size_t>(draw(std::ssize(before)))];
      prompt = first_of(other, std::max<int64_t>(1, std::ssize(other) - draw(page + 2)));
    }
    const Tokens more = tiny_tokens(1 + draw(2 * page), vocab, static_cast<uint32_t>(draw(5)));
    prompt.insert(prompt.end(), more.begin(), more.end());
    if (std::ssize(prompt) > 8 * page) prompt.resize(static_cast<size_t>(8 * page));
    const int64_t max_tokens = 1 + draw(2 * page);
    const std::string request = "request " + std::to_string(i);
    const api::Command command = ask(request, tenant, prompt, max_tokens, static_cast<uint64_t>(i));
    const api::Capacity capacity = with.runner.capacity();
    const int64_t known = page * capacity.known->count_reusable_pages(
                                     {tenant}, std::get<api::Sample>(command.op), capacity.cache);
    with.submit(command);
    run_all(with);
    without.submit(command);
    run_all(without);
    const api::SampleOutput& output = output_of(with, request);
    EXPECT_EQ(known, output.cached_tokens)
        << i;  // the scheduler does not charge for what is not read
    ASSERT_EQ(bytes_of(with.posted[request][0]), bytes_of(without.posted[request][0])) << i;
    ASSERT_EQ(output.cached_tokens,
              found_alone(model, {tenant}, prompt, output.sequences[0].tokens, prefill))
        << i;
    all_found += output.cached_tokens;
    needed += with.engine->kv_pool().pages_for(std::ssize(prompt) + max_tokens);
    Tokens whole = prompt;
    whole.insert(whole.end(), output.sequences[0].tokens.begin(), output.sequences[0].tokens.end());
    before.push_back(whole);
  }
  EXPECT_GT(all_found, 60);
  EXPECT_GE(needed, 10 * max_pages);
  expect_nothing_held(with);
}

// Turns of a chat begin with all that was said and sampled.
TEST_P(PrefixCaches, AChatReadsItsNewTokensAndAPageATurn) {
  const EngineOptions options{.page_size = kPage};
  Server with({.model = GetParam().model, .options = options}, {}, {.prefix_cache = true});
  Server without({.model = GetParam().model, .options = options});
  const int64_t page = with.engine->cache_layout().page_size();
  const int64_t context = with.engine->config().max_position_embeddings;
  Tokens said;
  int64_t turns = 0;
  for (int64_t turn = 0; turn < 16; ++turn) {
    const Tokens asked =
        tiny_tokens(3 + turn % 5, with.engine->config().vocab_size, static_cast<uint32_t>(turn));
    const int64_t new_tokens = std::ssize(asked);
    said.insert(said.end(), asked.begin(), asked.end());
    if (std::ssize(said) + 9 > context) break;
    ++turns;
    const std::string request = "turn " + std::to_string(turn);
    const api::Command command = ask(request, "tenant", said, 9, static_cast<uint64_t>(turn));
    with.submit(command);
    run_all(with);
    without.submit(command);
    run_all(without);
    const api::SampleOutput& output = output_of(with, request);
    EXPECT_EQ(bytes_of(with.posted[request][0]), bytes_of(without.posted[request][0]));
    if (turn > 0) {
      EXPECT_LE(std::ssize(said) - output.cached_tokens, new_tokens + page) << turn;
    }
    const Tokens& tokens = output.sequences[0].tokens;
    said.insert(said.end(), tokens.begin(), tokens.end());
  }
  EXPECT_EQ(turns, 16);
}

INSTANTIATE_TEST_SUITE_P(Families, PrefixCaches, testing::ValuesIn(kFamilies),
                         [](const auto& info) { return std::string(info.param.model); });

struct Trained : Server {
  explicit Trained(int64_t snapshot_bytes = int64_t{1} << 30)
      : Server({.options = {.page_size = kPage}}, {},
               {.snapshot_bytes = snapshot_bytes, .prefix_cache = true}) {}
  void save(const std::string& snapshot) {
    ask(command("m", ++seq,
                api::SaveForSampler{.dir = testing::TempDir() + "/" + snapshot,
                                    .snapshot = {snapshot},
                                    .ephemeral = true}));
  }
  void train() {
    ask(command("m", ++seq, data(*engine, {9}, 3)));
    ask(command("m", ++seq, api::OptimStep{.adamw = {.lr = 0.05}}));
  }
  const api::Outcome& ask(api::Command command) {
    const std::string request = command.request.text;
    submit(std::move(command));
    run_all(*this);
    return posted[request].at(0);
  }
  api::SampleOutput sample(const std::string& tenant, const std::string& snapshot) {
    api::Command command = engine::ask("s" + std::to_string(++number), tenant, prompt, 6, 5);
    std::get<api::Sample>(command.op).snapshot = {snapshot};
    std::get<api::Sample>(command.op).snapshot_dir = testing::TempDir() + "/" + snapshot;
    return std::get<api::SampleOutput>(ask(command));
  }
  Tokens prompt = tiny_tokens(30, engine->config().vocab_size, 1);
  int64_t seq = 0, number = 0;
};

TEST(PrefixCache, IsOfOneTenantAndOneSetOfWeights) {
  Trained server;
  server.ask(create("m", {.rank = 4, .seed = 3}));
  server.train();
  server.save("one");
  const api::SampleOutput first = server.sample("a", "one");
  EXPECT_EQ(first.cached_tokens, 0);
  const api::SampleOutput again = server.sample("a", "one");
  EXPECT_EQ(again.cached_tokens, 24);
  EXPECT_EQ(bytes_of(again), bytes_of(first));
  EXPECT_EQ(server.sample("b", "one").cached_tokens, 0);
  EXPECT_EQ(server.sample("a", "").cached_tokens, 0);
  server.train();
  server.save("two");
  const api::SampleOutput trained = server.sample("a", "two");
  EXPECT_EQ(trained.cached_tokens, 0);
  EXPECT_NE(bytes_of(trained), bytes_of(first));
  EXPECT_EQ(bytes_of(server.sample("a", "two")), bytes_of(trained));
  server.ask(command("m", 0, api::UnloadModel{}, "unload"));
  EXPECT_EQ(server.sample("a", "one").cached_tokens, 24);
  // The same name for other weights.
  server.ask(create("m2", {.rank = 4, .seed = 8}));
  const int64_t before = server.runner.prefixes()->num_pages();
  server.scheduler.release(server.runner.capacity().base, {"one"});
  server.turn();
  EXPECT_LT(server.runner.prefixes()->num_pages(), before);
  EXPECT_GT(server.runner.prefixes()->num_pages(), 0);
  server.ask(
      command("m2", 1,
              api::SaveForSampler{
                  .dir = testing::TempDir() + "/again", .snapshot = {"one"}, .ephemeral = true}));
  EXPECT_EQ(server.sample("a", "one").cached_tokens, 0);
  expect_nothing_held(server);
}

// Weights that are read back from their folder are the same, and so is what is sampled.
TEST(PrefixCache, GoesWithTheWeightsThatMemoryHasNoRoomFor) {
  Trained server(/*snapshot_bytes=*/1);
  server.ask(create("m", {.rank = 4, .seed = 3}));
  server.train();
  server.save("one");
  const api::SampleOutput first = server.sample("a", "one");
  EXPECT_EQ(server.sample("a", "one").cached_tokens, 24);
  server.train();
  server.save("two");
  const api::SampleOutput other = server.sample("a", "two");
  EXPECT_EQ(server.runner.snapshots().size(), 1u);
  const api::SampleOutput again = server.sample("a", "one");
  EXPECT_EQ(again.cached_tokens, 0);
  EXPECT_EQ(bytes_of(again), bytes_of(first));
  EXPECT_NE(bytes_of(again), bytes_of(other));
  EXPECT_EQ(server.sample("a", "one").cached_tokens, 24);
  expect_nothing_held(server);
}

// Whoever asks much displaces what it left itself, not what others did who have left less.
TEST(PrefixCache, ATenantDisplacesItsOwnFirst) {
  Server server({.options = {.page_size = kPage, .max_pages = 16}}, {}, {.prefix_cache = true});
  const int64_t vocab = server.engine->config().vocab_size;
  int64_t number = 0;
  const auto found = [&](const std::string& tenant, uint32_t seed) {
    const std::string request = "request " + std::to_string(++number);
    server.submit(ask(request, tenant, tiny_tokens(3 * kPage + 1, vocab, seed), 2, 1));
    run_all(server);
    return output_of(server, request).cached_tokens;
  };
  EXPECT_EQ(found("little", 1), 0);
  for (uint32_t seed = 10; seed < 30; ++seed) EXPECT_EQ(found("much", seed), 0);
  EXPECT_EQ(found("much", 29), 3 * kPage);
  EXPECT_EQ(found("much", 10), 0);
  EXPECT_EQ(found("little", 1), 3 * kPage);
  // One that leaves as much comes to as much.
  for (uint32_t seed = 40; seed < 60; ++seed) EXPECT_EQ(found("other", seed), 0);
  EXPECT_EQ(found("other", 59), 3 * kPage);
  EXPECT_EQ(found("little", 1), 3 * kPage);
  expect_nothing_held(server);
}

// Where drafts are made a page holds what reads one token further than it says.
TEST(PrefixCache, IsNotThereWhereDraftsAre) {
  Server server({.model = "deepseek_v4_mtp",
                 .options = {.page_size = kPage, .draft_tokens = 1},
                 .mtp = model::UseMtp::kIfThere},
                {}, {.prefix_cache = true});
  EXPECT_EQ(server.runner.prefixes(), nullptr);
}

// Pages that a pass was to write, and did not, are nobody's prefix.
TEST(PrefixCache, KeepsNothingOfAPassThatFailed) {
  for (const bool has_run : {false, true}) {
    auto engine = tiny_engine({.options = {.page_size = kPage}});
    PrefixCache prefixes(engine->cache_layout(), engine->kv_pool(), engine->state_pool());
    RowBook book(*engine, &prefixes);
    StepPlanner planner(*engine, book);
    const auto command = std::make_shared<const api::Command>(
        ask("request", "tenant", tiny_tokens(30, engine->config().vocab_size, 1), 3, 1));
    const auto& sample = std::get<api::Sample>(command->op);
    const size_t group =
        book.open_group(std::shared_ptr<const api::SampleRequest>(command, &sample), nullptr, 1,
                        std::make_shared<SampleAnswer>(SampleAnswer{.command = command}));
    const size_t row = book.add_row(group, 1);
    book.close_group(group);
    planner.plan(0);
    EXPECT_EQ(book.row(row).position, 30);
    if (has_run) book.commit_read(row, planner.slices()[0].ends_prompt);
    book.finish(row);
    EXPECT_EQ(prefixes.num_pages(), has_run ? 3 : 0);
    book.take_result(row);
  }
}

// What a prompt's values need is read.
TEST(PrefixCache, PromptsWhoseValuesAreAskedForAreReadFromThereOn) {
  Server server({.options = {.page_size = kPage}}, {}, {.prefix_cache = true});
  const Tokens prompt = tiny_tokens(30, server.engine->config().vocab_size, 1);
  const auto found = [&](const std::string& request, auto edit) {
    api::Command command = ask(request, "tenant", prompt, 3, 1);
    edit(std::get<api::Sample>(command.op));
    server.submit(command);
    run_all(server);
    return output_of(server, request).cached_tokens;
  };
  EXPECT_EQ(found("first", [](api::Sample&) {}), 0);
  EXPECT_EQ(found("plain", [](api::Sample&) {}), 24);
  EXPECT_EQ(found("all", [](api::Sample& s) { s.prompt_logprobs = true; }), 0);
  EXPECT_EQ(found("some",
                  [](api::Sample& s) {
                    s.prompt_logprobs = true;
                    s.first_prompt_logprob = 17;
                  }),
            16);
  EXPECT_EQ(found("draws", [](api::Sample& s) { s.prompt_draws = 1; }), 0);
  EXPECT_EQ(found("targets",
                  [](api::Sample& s) {
                    s.prompt_targets.first.assign(30, 0);
                    s.prompt_targets.first.back() = 1;
                    s.prompt_targets.ids = {4};
                  }),
            24);
}

}  // namespace
}  // namespace strata::engine
