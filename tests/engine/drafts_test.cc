// SPDX-License-Identifier: Apache-2.0
// Drafts of multi-token prediction, one or more a step, change how many steps a sample takes and
// nothing that it holds: over the borders of windows, entries, chunks of the delta rule and pages,
// for prompts in pieces and in common, with adapters and rows that come and go.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "engine/sampling/sampling_loop.h"
#include "model/blocks/gated_delta_net.h"
#include "ops/cpu/sampler.h"
#include "tests/engine/tiny_engine.h"

namespace strata::engine {
namespace {

// Windows and compressed entries; delta nets, whose state each row changes as a whole.
constexpr const char* kWindowed = "deepseek_v4_mtp";
constexpr const char* kRecurrent = "qwen3_5_mtp";

struct Setting {
  const char* model = kWindowed;
  DType dtype = DType::kF32;
  int64_t prefill_tokens = 2048;
  int64_t page_size = 64;
  int64_t draft_tokens = 1;
};

// On near-uniform distributions the random number chooses the token, and drafts agree with it.
constexpr float kTemperatures[] = {0.0f, 0.9f, 40.0f};

class DraftRuns {
 public:
  explicit DraftRuns(const Setting& setting)
      : engine_(tiny_engine({.model = setting.model,
                             .dtype = setting.dtype,
                             .threads = 2,
                             .options = {.prefill_tokens = setting.prefill_tokens,
                                         .page_size = setting.page_size,
                                         .draft_tokens = setting.draft_tokens},
                             .mtp = model::UseMtp::kAlways})) {
    slot_ = engine_->create_adapter(tiny_specs(*engine_, 4), 3);
    stir(*engine_, slot_);
  }
  Engine& engine() { return *engine_; }
  [[nodiscard]] api::AdapterSlot slot() const { return slot_; }

  [[nodiscard]] std::vector<api::SampleRequest> requests() const {
    std::vector<api::SampleRequest> out;
    for (const int64_t length : {1, 7, 30, 63}) {
      for (const float temperature : kTemperatures) {
        api::SampleRequest request;
        request.prompt =
            tiny_tokens(length, engine_->config().vocab_size, static_cast<uint32_t>(length));
        request.max_tokens = length == 7 ? 2 : 45;
        request.temperature = temperature;
        request.top_k = length == 30 ? 20 : 0;
        request.seed = static_cast<uint64_t>(length);
        request.topk_sample_logprobs = 2;
        request.scaled_logprobs = length == 1;
        request.prompt_logprobs = length == 30;
        if (length == 63) request.slot = slot_;
        if (length == 1) request.stop = {5, 11};
        out.push_back(std::move(request));
      }
    }
    return out;
  }

 private:
  std::unique_ptr<Engine> engine_;
  api::AdapterSlot slot_;
};

// Penalties count the drafts that are read before a token, and those that are made.
std::vector<api::SampleRequest> bent(std::vector<api::SampleRequest> requests) {
  for (size_t i = 0; i < requests.size(); ++i) {
    if (i % 2 == 0) requests[i].frequency_penalty = 1.5f;
    if (i % 3 == 0) requests[i].presence_penalty = 2.0f;
    if (i % 4 == 1) requests[i].repetition_penalty = 0.25f;
    if (i % 5 == 2) requests[i].min_p = 0.9f;
    if (i % 5 == 3) requests[i].logit_bias = {{5, 3.0f}};
  }
  return requests;
}

TEST(Drafts, MoveNoBitOfASample) {
  // Seven are as many as this model's windows of eight allow.
  for (const Setting& setting :
       {Setting{}, Setting{.dtype = DType::kBF16}, Setting{.prefill_tokens = 26, .page_size = 8},
        Setting{.draft_tokens = 2}, Setting{.dtype = DType::kBF16, .draft_tokens = 3},
        Setting{.page_size = 8, .draft_tokens = 7},
        Setting{.prefill_tokens = 26, .page_size = 8, .draft_tokens = 3},
        Setting{.model = kRecurrent}, Setting{.model = kRecurrent, .dtype = DType::kBF16},
        Setting{.model = kRecurrent, .prefill_tokens = 26, .page_size = 8, .draft_tokens = 3},
        Setting{.model = kRecurrent, .dtype = DType::kBF16, .draft_tokens = 16},
        Setting{.model = "qwen3_5_moe_mtp", .dtype = DType::kBF16, .draft_tokens = 2}}) {
    SCOPED_TRACE(setting.model);
    SCOPED_TRACE(setting.draft_tokens);
    Setting none = setting;
    none.draft_tokens = 0;
    DraftRuns plain(none), drafts(setting);
    auto requests = plain.requests();
    for (api::SampleRequest& request : bent(requests)) requests.push_back(std::move(request));
    const auto want = sample(plain.engine(), requests);
    SamplingLoop loop(drafts.engine());
    std::vector<size_t> ids;
    for (const api::SampleRequest& request : requests) ids.push_back(loop.add(request));
    while (!loop.done()) loop.step();
    for (size_t i = 0; i < ids.size(); ++i) {
      SCOPED_TRACE(i);
      expect_same(loop.take_result(ids[i]), want[i]);
    }
    EXPECT_GT(loop.drafts().accepted, 20);
    EXPECT_GT(loop.drafts().read, loop.drafts().accepted + 20);
  }
}

struct DraftCount {
  const char* model;
  int64_t tokens;
};
class DraftCounts : public testing::TestWithParam<DraftCount> {
 protected:
  static Setting setting(int64_t page_size = 64) {
    return {.model = GetParam().model, .page_size = page_size, .draft_tokens = GetParam().tokens};
  }
};
INSTANTIATE_TEST_SUITE_P(Tokens, DraftCounts,
                         testing::Values(DraftCount{kWindowed, 1}, DraftCount{kWindowed, 3},
                                         DraftCount{kRecurrent, 1}, DraftCount{kRecurrent, 3}),
                         [](const auto& info) {
                           return fmt::format("{}_{}", info.param.model, info.param.tokens);
                         });

// An accepted draft saves a pass, and is handed out on its own.
TEST_P(DraftCounts, AnAcceptedDraftIsATokenWithoutAPass) {
  DraftRuns runs(setting());
  SamplingLoop loop(runs.engine());
  api::SampleRequest request = runs.requests()[2];
  request.stop.clear();
  const size_t id = loop.add(request);
  int64_t passes = 0, steps = 0;
  while (!loop.done()) {
    EXPECT_EQ(loop.step().size(), 1u);
    ++steps;
    passes += loop.last_tokens() > 0 ? 1 : 0;
  }
  EXPECT_EQ(steps, request.max_tokens);
  EXPECT_EQ(passes, request.max_tokens - loop.drafts().accepted);
  EXPECT_GT(loop.drafts().accepted, 5 * GetParam().tokens);
  EXPECT_EQ(std::ssize(loop.take_result(id).tokens), request.max_tokens);
}

// Rows of one prompt, of which one is set aside with a token in advance, with its pages and
// without.
TEST_P(DraftCounts, RowsThatShareAPromptAndAreSetAside) {
  DraftRuns plain({.model = GetParam().model, .page_size = 8, .draft_tokens = 0});
  DraftRuns drafts(setting(8));
  const auto sample = [](DraftRuns& runs, bool interrupts, bool keep) {
    api::SampleRequest request = runs.requests()[11];
    SamplingLoop loop(runs.engine());
    const size_t group = loop.open_group(request, nullptr);
    std::vector<size_t> ids;
    for (uint64_t seed = 1; seed <= 3; ++seed) ids.push_back(loop.add_row(group, seed));
    loop.close_group(group);
    for (int i = 0; !loop.done(); ++i) {
      loop.step();
      if (!interrupts || i % 7 != 3 || loop.done()) continue;
      if (loop.row(ids[1]).num_sampled() == 0 ||
          loop.row(ids[1]).num_sampled() == request.max_tokens)
        continue;
      loop.preempt_row(ids[1], keep);
      if (!loop.done()) loop.step();
      loop.resume(ids[1]);
    }
    std::vector<api::SampleResult> out;
    for (const size_t id : ids) out.push_back(loop.take_result(id));
    return out;
  };
  const auto want = sample(plain, false, false);
  for (const bool keep : {true, false}) {
    const auto got = sample(drafts, true, keep);
    for (size_t i = 0; i < want.size(); ++i) expect_same(got[i], want[i]);
  }
}

// The rows of all rings that stand for the positions before this one, without those of the log;
// and of delta nets what every row changes.
std::string changing_rows(const Engine& engine, const void* state, int64_t position) {
  const model::CacheLayout& cache = engine.cache_layout();
  std::string out;
  for (int64_t layer = 0; layer < engine.config().num_layers(); ++layer) {
    const auto* net =
        engine.config().find_block_config<model::GatedDeltaNetConfig>(layer, model::kGatedDeltaNet);
    if (net == nullptr) continue;
    const model::CacheSpec spec = model::kGatedDeltaNet.cache_spec(net, DType::kF32);
    const int64_t decays = ops::delta_decay_bytes(net->shape());
    const char* own = static_cast<const char*>(state) + cache.place(layer, 0).state_offset;
    const int64_t history = spec.replay.before_bytes - decays;
    out.append(own, static_cast<size_t>(history));
    // Of each value head one for each row of the chunk so far, and their product; the rest is what
    // chunks before left, which nothing reads.
    const int64_t rows = position % ops::kDeltaChunk;
    for (int64_t head = 0; head < net->num_value_heads && rows > 0; ++head) {
      const char* of = own + history + head * decays / net->num_value_heads;
      out.append(of, static_cast<size_t>(4 * rows));
      out.append(of + 4 * ops::kDeltaChunk, 4);
    }
  }
  for (const model::StateRing& ring : cache.rings()) {
    for (int64_t p = std::max<int64_t>(0, position - ring.slots); p < position; ++p) {
      const char* row =
          static_cast<const char*>(state) + ring.offset + p % ring.slots * ring.row_bytes;
      out.append(row, static_cast<size_t>(ring.row_bytes));
    }
  }
  return out;
}

// What rejected drafts wrote over is put back: whenever a row has nothing in advance, its state is
// that of a row which never read a draft, nor made one of another.
TEST(Drafts, ARejectedDraftLeavesNothing) {
  for (const auto& [model, draft_tokens] :
       {DraftCount{kWindowed, 1}, DraftCount{kWindowed, 3}, DraftCount{kWindowed, 7},
        DraftCount{kRecurrent, 1}, DraftCount{kRecurrent, 3}, DraftCount{kRecurrent, 9}}) {
    SCOPED_TRACE(fmt::format("{} {}", model, draft_tokens));
    DraftRuns alone({.model = model}), drafts({.model = model, .draft_tokens = draft_tokens});
    int64_t rejected = 0;
    for (const size_t which : {size_t{6}, size_t{7}, size_t{9}, size_t{11}}) {
      const api::SampleRequest request = drafts.requests()[which];
      SamplingLoop one_by_one(alone.engine()), loop(drafts.engine());
      one_by_one.set_step_tokens(1);
      const size_t want = one_by_one.add(request), got = loop.add(request);
      int64_t compared = 0;
      while (!loop.done()) {
        loop.step();
        const SampleRow& row = loop.row(got);
        if (row.finished() || !row.ahead.empty()) continue;
        while (one_by_one.row(want).position < row.position) one_by_one.step();
        const HostAccess access(drafts.engine().backend().allocator());
        const HostAccess other_access(alone.engine().backend().allocator());
        ASSERT_EQ(changing_rows(drafts.engine(), row.state, row.position),
                  changing_rows(alone.engine(), one_by_one.row(want).state, row.position))
            << row.position;
        ++compared;
      }
      EXPECT_EQ(one_by_one.drafts().read, 0);
      EXPECT_GT(compared, 5);
      rejected += loop.drafts().read - loop.drafts().accepted;
    }
    EXPECT_GT(rejected, 40);
  }
}

// Pages are taken for drafts in advance: what counts for a row that is aside covers them.
TEST_P(DraftCounts, RowsThatAreAsideHoldNoMoreThanCounts) {
  DraftRuns runs(setting(4));
  const KvPool& pool = runs.engine().kv_pool();
  SamplingLoop loop(runs.engine());
  const Preemption room(runs.engine(), loop, /*max_rows=*/4);
  api::SampleRequest request = runs.requests()[2];
  request.stop.clear();
  const size_t id = loop.add(request);
  int64_t most = 0;
  while (!loop.done()) {
    loop.step();
    if (loop.row(id).finished()) break;
    loop.preempt_row(id, /*keep=*/true);
    const int64_t held = pool.num_pages() - pool.num_free();
    EXPECT_LE(held, room.reserved_pages()) << loop.row(id).num_sampled();
    most = std::max(most, held);
    loop.resume(id);
  }
  EXPECT_GT(most, 2);
}

// A state of windows of eight cannot take back eight drafts.
TEST(Drafts, MoreThanCanBeTakenBackAreRefused) {
  EXPECT_NO_THROW(DraftRuns({.draft_tokens = 7}));
  try {
    DraftRuns runs({.draft_tokens = 8});
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("--draft-tokens: got 8, want less than 8"),
              std::string::npos)
        << error.what();
  }
}

// Each draft is what the layer's logits over the whole sequence, in one pass, choose at that place:
// as many are read and accepted as these logits say.
TEST(Drafts, AreTheChoiceOfTheLayersOwnForward) {
  for (const auto& [model, dtype] :
       {std::pair(kWindowed, DType::kF32), std::pair(kWindowed, DType::kBF16),
        std::pair(kRecurrent, DType::kF32), std::pair(kRecurrent, DType::kBF16),
        std::pair("qwen3_5_moe_mtp", DType::kF32)}) {
    SCOPED_TRACE(model);
    DraftRuns runs({.model = model, .dtype = dtype, .prefill_tokens = 26, .page_size = 8});
    const int64_t vocab = runs.engine().config().vocab_size;
    for (const api::SampleRequest& request : runs.requests()) {
      SamplingLoop loop(runs.engine());
      const size_t id = loop.add(request);
      while (!loop.done()) loop.step();
      const SamplingLoop::Drafts drafts = loop.drafts();
      const std::vector<int32_t> sampled = loop.take_result(id).tokens;
      api::Datum datum = {.tokens = request.prompt};
      datum.tokens.insert(datum.tokens.end(), sampled.begin(), sampled.end());
      api::TensorSink sink;
      run_batch(runs.engine(),
                {.sequences = {{.datum = &datum, .slot = request.slot}},
                 .want_loss = false,
                 .want_logits = true,
                 .mtp_weight = 1.0f},
                &sink);
      // Of what the layer takes for the token of this index, the row two tokens before says.
      const auto draft = [&](size_t index) {
        const auto row = static_cast<int64_t>(request.prompt.size() + index) - 2;
        return ops::cpu::choose_token(
            std::span(sink.at("mtp_logits").values)
                .subspan(static_cast<size_t>(row * vocab), static_cast<size_t>(vocab)),
            {.temperature = request.temperature,
             .top_k = request.top_k,
             .top_p = request.top_p,
             .seed = request.seed},
            index);
      };
      SamplingLoop::Drafts want;
      // Behind each pass stands a draft, which the next one reads unless what it samples is the
      // last that is asked for; a token that ends the sample makes what is behind it count for
      // nothing.
      for (size_t index = 1; index < sampled.size();) {
        if (static_cast<int64_t>(index) + 1 >= request.max_tokens) break;
        const auto place = static_cast<int64_t>(request.prompt.size() + index);
        if (runs.engine().cache_layout().most_drafts_from(place) == 0) {
          ++index;  // it would end a chunk
          continue;
        }
        ++want.read;
        const bool accepted = draft(index) == sampled[index];
        want.accepted += accepted && index + 1 < sampled.size() ? 1 : 0;
        index += accepted ? 2 : 1;
      }
      EXPECT_EQ(drafts.read, want.read) << request.prompt.size() << ' ' << request.temperature;
      EXPECT_EQ(drafts.accepted, want.accepted) << request.prompt.size();
    }
  }
}

}  // namespace
}  // namespace strata::engine
