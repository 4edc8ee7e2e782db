// SPDX-License-Identifier: Apache-2.0
// Random interleavings of three tenants' rows, of the base and of adapters that train meanwhile:
// every row finds what a model of the cache says, and answers as it does alone without a cache.
#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/adapter_state.h"
#include "tests/engine/prefix_house.h"

namespace strata::engine {
namespace {

constexpr int64_t kTenants = 3;
constexpr int64_t kPages = 8;  // a tenth of what the requests of an interleaving come to
constexpr int64_t kRows = 4;
constexpr int64_t kAsked = 44;

// An adapter that trains, and copies of it as they are saved for sampling. Engines of one history
// have the same.
struct Trainee {
  std::unique_ptr<Engine> engine;
  api::AdapterSlot slot = {};
  std::vector<std::shared_ptr<model::LoraAdapter>> saved = {};  // null: nobody has it any more

  Trainee(const char* model, const EngineOptions& options)
      : engine(tiny_engine({.model = model, .options = options})),
        slot(engine->create_adapter(tiny_specs(*engine, 2), 3)) {
    stir(*engine, slot);
  }
  void train() {
    const uint32_t seed = static_cast<uint32_t>(saved.size());
    run_batch(*engine, {.sequences = {tiny_sequence(*engine, 9, seed, slot)}});
    take_step(*engine, slot, {.lr = 0.05});
    saved.push_back(copy_adapter(*engine, engine->adapter(slot)));
  }
};

struct Asked {
  CacheModel::Row row;  // of the model
  api::Sample sample;
  int64_t reserved = 0;     // pages, while it has any
  bool has_values = false;  // of its prompt
  int64_t found = -1;       // tokens, the first time
};

struct Counts {
  int64_t found = 0, looked = 0, answers = 0, cancelled = 0, aside = 0, trained = 0;
};

// Of one interleaving. Pages and states are as many as the rows that run may come to hold.
class House {
 public:
  House(Trainee& with, Trainee& without, uint32_t seed, Counts& counts)
      : with_(with), without_(without), engine_(*with.engine), draw_{seed}, counts_(counts) {
    for (uint32_t i = 0; i < 3; ++i)
      stems_.push_back(tiny_tokens(2 * page() + draw_(page()), vocab(), 100 * seed + i));
  }

  void run() {
    int64_t asked = 0;
    while (asked < kAsked || !asked_.empty()) {
      switch (draw_(12)) {
        case 0:
          if (!asked_.empty() && draw_(5) == 0) cancel(any_row());
          break;
        case 1:
          if (!asked_.empty()) preempt_row(any_row());
          break;
        case 2:
          if (!asked_.empty()) give_up(any_row());
          break;
        case 3:
        case 4:
          if (!asked_.empty()) resume(any_row());
          break;
        case 5:
          if (asked < kAsked && draw_(8) == 0) train();
          break;
        case 6:
          if (draw_(4) == 0) drop_weights();
          break;
        case 7:
        case 8:
          if (asked < kAsked && ask()) ++asked;
          break;
        default:
          step();
      }
      ASSERT_EQ(prefixes_.num_pages(), model_.num_pages());
      ASSERT_EQ(prefixes_.num_nodes(), std::ssize(model_.entries));
      if (testing::Test::HasFailure()) return;
    }
    EXPECT_EQ(book_.prefix_counts().prompt_tokens, prefix_counts_.prompt_tokens);
    EXPECT_EQ(book_.prefix_counts().found_tokens, prefix_counts_.found_tokens);
    prefixes_.clear();
    EXPECT_EQ(engine_.kv_pool().num_free(), engine_.kv_pool().num_pages());
    EXPECT_EQ(engine_.state_pool().num_free(), engine_.state_pool().num_slabs());
  }
  // Pages that have something of its own in them, of all that was asked and answered.
  [[nodiscard]] int64_t distinct_pages() const { return std::ssize(pages_); }

 private:
  [[nodiscard]] int64_t page() const { return engine_.cache_layout().page_size(); }
  [[nodiscard]] int64_t vocab() const { return engine_.config().vocab_size; }
  size_t any_row() { return std::next(asked_.begin(), draw_(std::ssize(asked_)))->first; }
  [[nodiscard]] bool has_pages(int64_t count) const {
    int64_t held = 0, rows = 0;
    for (const auto& [id, asked] : asked_) {
      held += asked.reserved;
      rows += asked.reserved > 0 ? 1 : 0;
    }
    return held + count <= kPages && rows < kRows;
  }
  [[nodiscard]] int64_t need(const api::Sample& sample) const {
    return engine_.kv_pool().need().of_largest(sample);
  }
  // All tokens of the row that anybody knows.
  Tokens tokens_of(size_t id) {
    Tokens tokens = asked_.at(id).sample.prompt;
    const Tokens& own = book_.row(id).result.tokens;
    tokens.insert(tokens.end(), own.begin(), own.end());
    return tokens;
  }

  Tokens draw_prompt() {
    Tokens prompt;
    if (!said_.empty() && draw_(3) == 0) {  // a chat goes on
      prompt = said_[static_cast<size_t>(draw_(std::ssize(said_)))];
    } else {
      prompt = stems_[static_cast<size_t>(draw_(3))];
    }
    const Tokens more =
        tiny_tokens(1 + draw_(2 * page()), vocab(), static_cast<uint32_t>(draw_(9)));
    prompt.insert(prompt.end(), more.begin(), more.end());
    if (std::ssize(prompt) > 5 * page()) prompt.resize(static_cast<size_t>(5 * page()));
    return prompt;
  }

  bool ask() {
    api::Sample sample;
    sample.prompt = draw_prompt();
    sample.max_tokens = 1 + draw_(page());
    sample.temperature = 0.8f;
    sample.top_k = 40;
    if (draw_(5) == 0) {
      sample.prompt_logprobs = true;
      sample.first_prompt_logprob = 1 + draw_(std::ssize(sample.prompt));
    }
    if (!has_pages(need(sample))) return false;
    CacheModel::Owner owner = {"tenant " + std::to_string(draw_(kTenants))};
    if (draw_(3) > 0) owner.weights = draw_weights();
    const auto weights = owner.weights == 0 ? nullptr : with_.saved[index(owner.weights)];
    const auto command = std::make_shared<const api::Command>(api::Command{
        .tenant = {owner.tenant},
        .op = sample,
    });
    const auto& shared = std::get<api::Sample>(command->op);
    const size_t group =
        book_.open_group({command, &shared}, weights, std::hash<std::string>()(owner.tenant),
                         std::make_shared<SampleAnswer>(SampleAnswer{.command = command}));
    const size_t row = book_.add_row(group, ++seed_);
    book_.close_group(group);
    sample.seed = seed_;
    asked_[row] = {.row = {.owner = owner}, .sample = sample, .reserved = need(sample)};
    return true;
  }

  static size_t index(int64_t weights) { return static_cast<size_t>(weights - 1); }
  // One of those that are still saved; 0: there are none.
  int64_t draw_weights() {
    std::vector<int64_t> saved = {0};
    for (size_t i = 0; i < with_.saved.size(); ++i) {
      if (with_.saved[i] != nullptr) saved.push_back(static_cast<int64_t>(i) + 1);
    }
    return saved[static_cast<size_t>(draw_(std::ssize(saved)))];
  }
  void train() {
    with_.train();
    without_.train();
    ++counts_.trained;
  }
  // Weights that are let go leave the cache once no row has them.
  void drop_weights() {
    const int64_t weights = draw_weights();
    if (weights == 0) return;
    const std::weak_ptr<model::LoraAdapter> gone = std::exchange(with_.saved[index(weights)], {});
    going_[weights] = gone;
    forget_gone();
  }
  void forget_gone() {
    prefixes_.drop_unreachable();
    std::erase_if(going_, [this](const auto& one) {
      if (one.second.expired()) model_.forget(one.first);
      return one.second.expired();
    });
  }

  void vacate(size_t id) {
    Asked& asked = asked_.at(id);
    model_.end(asked.row, tokens_of(id));
    asked.reserved = 0;
  }
  void note_pages(size_t id) {
    const Tokens tokens = tokens_of(id);
    const CacheModel::Owner& owner = asked_.at(id).row.owner;
    for (int64_t n = 0; n < std::ssize(tokens); n += page())
      pages_.insert({owner, first_of(tokens, std::min(n + page(), std::ssize(tokens)))});
  }

  void cancel(size_t id) {
    vacate(id);
    book_.finish(id);
    book_.take_result(id);
    asked_.erase(id);
    ++counts_.cancelled;
    forget_gone();
  }
  void preempt_row(size_t id) {
    if (book_.row(id).aside()) return;
    if (!book_.preempt_row(id, draw_(2) == 0)) vacate(id);
    ++counts_.aside;
  }
  void give_up(size_t id) {
    if (!book_.row(id).aside() || !book_.row(id).resident()) return;
    vacate(id);
    book_.give_up_pages(id);
  }
  void resume(size_t id) {
    const SampleRow& row = book_.row(id);
    Asked& asked = asked_.at(id);
    if (!row.aside() || (!row.resident() && !has_pages(need(asked.sample)))) return;
    if (!row.resident()) asked.reserved = need(asked.sample);
    book_.resume(id);
  }

  void step() {
    if (book_.active().empty()) return;
    std::vector<size_t> looking;
    for (const size_t id : book_.active()) {
      if (book_.row(id).prompt != PromptRole::kLeadsOnwards) looking.push_back(id);
    }
    planner_.plan(draw_(2) == 0 ? 0 : 1 + draw_(2 * page()));
    std::map<size_t, int64_t> begins;  // of the slices
    for (const StepSlice& slice : planner_.slices())
      begins[slice.id] = book_.row(slice.id).position - (slice.end - slice.begin);
    for (const size_t id : looking)
      look(id, begins.contains(id) ? begins[id] : book_.row(id).position);
    std::map<size_t, Tokens> read;
    for (const StepSlice& slice : planner_.slices()) {
      const int64_t end = book_.row(slice.id).position;
      model_.cover(asked_.at(slice.id).row, end);
      read[slice.id] = first_of(tokens_of(slice.id), end);
    }
    pass_.run();
    for (const StepSlice& slice : planner_.slices()) {
      Asked& asked = asked_.at(slice.id);
      model_.note(asked.row, read[slice.id]);
      asked.has_values = asked.has_values || slice.ends_prompt;
    }
    for (const StepSlice& slice : planner_.slices()) {
      if (book_.row(slice.id).finished()) answer(slice.id);
    }
    forget_gone();
  }
  void look(size_t id, int64_t found) {
    Asked& asked = asked_.at(id);
    int64_t most = std::ssize(asked.sample.prompt);
    if (asked.sample.prompt_logprobs && !asked.has_values)
      most = asked.sample.first_prompt_logprob - 1;
    ASSERT_EQ(found, model_.begin(asked.row, asked.sample.prompt, most)) << id;
    if (asked.found < 0) {
      asked.found = found;
      prefix_counts_.prompt_tokens += std::ssize(asked.sample.prompt);
      prefix_counts_.found_tokens += found;
    }
    counts_.found += found;
    ++counts_.looked;
  }
  void answer(size_t id) {
    note_pages(id);
    vacate(id);
    EXPECT_EQ(book_.group_of(book_.row(id)).num_found.value_or(0),
              asked_.at(id).found);  // as usage tells
    said_.push_back(tokens_of(id));
    api::SampleRequest alone = asked_.at(id).sample;
    const int64_t weights = asked_.at(id).row.owner.weights;
    SamplingLoop loop(*without_.engine);
    const size_t group =
        loop.open_group(alone, weights == 0 ? nullptr : without_.saved[index(weights)]);
    const size_t row = loop.add_row(group, alone.seed);
    loop.close_group(group);
    while (!loop.done()) loop.step();
    expect_same(book_.take_result(id), loop.take_result(row));
    asked_.erase(id);
    ++counts_.answers;
  }

  Trainee& with_;
  Trainee& without_;
  Engine& engine_;
  Drawn draw_;
  Counts& counts_;
  PrefixCache prefixes_{engine_.cache_layout(), engine_.kv_pool(), engine_.state_pool()};
  RowBook book_{engine_, &prefixes_};
  StepPlanner planner_{engine_, book_};
  Runner runner_{engine_};
  SamplePass pass_{runner_, engine_.workspace(), book_, planner_};
  CacheModel model_ = model_of(engine_);
  RowBook::PrefixCounts prefix_counts_;  // as the model has them
  std::map<size_t, Asked> asked_;
  std::map<int64_t, std::weak_ptr<model::LoraAdapter>> going_;
  std::vector<Tokens> stems_, said_;
  std::set<std::pair<CacheModel::Owner, Tokens>> pages_;
  uint64_t seed_ = 0;
};

class PrefixHits : public testing::TestWithParam<Family> {};

TEST_P(PrefixHits, OfInterleavingsAreThoseOfAModelOfTheCache) {
  EngineOptions options{.prefill_tokens = 16, .page_size = kPage};
  Trainee without(GetParam().model, options);
  options.max_pages = kPages;
  options.max_states = kRows + 1;
  Counts counts;
  int64_t distinct = 0;
  for (uint32_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    Trainee with(GetParam().model, options);
    Trainee& plain = without;
    plain.saved.clear();
    plain.engine->clear_adapter(plain.slot);
    plain.slot = plain.engine->create_adapter(tiny_specs(*plain.engine, 2), 3);
    stir(*plain.engine, plain.slot);
    House house(with, plain, seed, counts);
    house.run();
    if (HasFatalFailure() || HasFailure()) return;
    distinct += house.distinct_pages();
  }
  EXPECT_GE(distinct, 40 * 10 * kPages);
  EXPECT_GT(counts.found, 1000);
  EXPECT_GT(counts.cancelled, 40);
  EXPECT_GT(counts.aside, 400);
  EXPECT_GT(counts.trained, 40);
  std::printf(
      "%s: %ld answers, %ld looked, %ld tokens found, %ld aside, %ld cancelled, %ld trained, "
      "%ld distinct pages\n",
      GetParam().model, static_cast<long>(counts.answers), static_cast<long>(counts.looked),
      static_cast<long>(counts.found), static_cast<long>(counts.aside),
      static_cast<long>(counts.cancelled), static_cast<long>(counts.trained),
      static_cast<long>(distinct));
}

INSTANTIATE_TEST_SUITE_P(Families, PrefixHits, testing::ValuesIn(kFamilies),
                         [](const auto& info) { return std::string(info.param.model); });

}  // namespace
}  // namespace strata::engine
