// SPDX-License-Identifier: Apache-2.0
// Rows whose answers have to fit a schema: what they sample is what the plain reference chooses
// from the logits that a training pass has, under the mask; next to others, with drafts, set aside
// and in stages alike. Other rows keep their bits.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "backend/thread_comm.h"
#include "engine/sampling/sampling_loop.h"
#include "ops/ref/choose_tokens.h"
#include "structured/grammar.h"
#include "tests/engine/runner_house.h"
#include "tests/engine/tiny_engine.h"
#include "tests/text/tiny_tokenizer.h"

namespace strata::engine {
namespace {

constexpr const char* kSchema = R"({"type": "object", "properties": {"a": {"type": "integer"},
    "b": {"type": "array", "items": {"enum": ["x", true, "yz"]}, "maxItems": 4}},
    "required": ["a", "b"], "additionalProperties": false})";

// One token for each character that JSON of lower-case letters needs, and an end.
text::Tokenizer letters() {
  std::vector<std::string> tokens;
  for (const char c : std::string(R"({}[]":,.-+0123456789abcdefghijklmnopqrstuvwxyz\E_)"))
    tokens.emplace_back(1, c);
  tokens.emplace_back("Ġ");
  const std::string json =
      R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[)" +
      text::added_token_json(tokens.size(), "<|end|>") +
      R"(],"normalizer":null,"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,)"
      R"("trim_offsets":true,"use_regex":true},"post_processor":null,)"
      R"("decoder":{"type":"ByteLevel"},"model":)" +
      text::bpe_json(tokens, {}, "") + "}";
  return text::Tokenizer::parse(json, "letters");
}

class GrammarRows : public testing::Test {
 protected:
  void SetUp() override {
    try {
      structured::require_grammars();
    } catch (const Error&) {
      GTEST_SKIP();  // tests/structured fails where they should be there
    }
  }
};

struct Schemas {
  explicit Schemas(int64_t vocab_size)
      : tokenizer(letters()),
        end(tokenizer.token_to_id("<|end|>").value()),
        vocabulary(tokenizer, vocab_size) {}
  [[nodiscard]] structured::Matcher start() const { return compile(kSchema).start({end}); }
  [[nodiscard]] structured::Grammar compile(const std::string& schema) const {
    return structured::compile_grammar(vocabulary, {.text = schema}, "S");
  }
  text::Tokenizer tokenizer;
  int32_t end;
  structured::Vocabulary vocabulary;
};

api::SampleRequest request_of(const Engine& engine, int64_t prompt, float temperature) {
  api::SampleRequest request;
  request.prompt = tiny_tokens(prompt, engine.config().vocab_size, 5);
  request.max_tokens = 60;
  request.temperature = temperature;
  request.seed = static_cast<uint64_t>(prompt);
  request.topk_sample_logprobs = 2;
  return request;
}

// Greedy, likely and near-uniform; the last has what masks are read behind.
std::vector<api::SampleRequest> requests_of(const Engine& engine) {
  std::vector<api::SampleRequest> out = {request_of(engine, 9, 0.0f), request_of(engine, 13, 0.9f),
                                         request_of(engine, 6, 40.0f), request_of(engine, 20, 3.0f),
                                         request_of(engine, 5, 1.0f)};
  out[3].top_k = 3;
  out[4].frequency_penalty = 0.7f;
  out[4].repetition_penalty = 1.2f;
  out[4].top_p = 0.8f;
  return out;
}

void finish(SamplingLoop& loop) {
  while (!loop.done()) loop.step();
}

// Each with the schema, all at once.
std::vector<api::SampleResult> sample_fitting(SamplingLoop& loop, const Schemas& schemas,
                                              const std::vector<api::SampleRequest>& requests) {
  std::vector<size_t> ids;
  for (const api::SampleRequest& request : requests) {
    const size_t group =
        loop.open_group(std::make_shared<const api::SampleRequest>(request), StagedAdapter{}, 0);
    ids.push_back(loop.add_row(group, request.seed));
    loop.close_group(group);
    loop.set_matcher(ids.back(), schemas.start());
  }
  finish(loop);
  std::vector<api::SampleResult> out;
  for (const size_t id : ids) out.push_back(loop.take_result(id));
  return out;
}

void expect_equal(const std::vector<api::SampleResult>& got,
                  const std::vector<api::SampleResult>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].tokens, want[i].tokens) << i;
    EXPECT_EQ(got[i].logprobs, want[i].logprobs) << i;
    EXPECT_EQ(got[i].sample_topk_ids, want[i].sample_topk_ids) << i;
    EXPECT_EQ(got[i].stopped, want[i].stopped) << i;
  }
}

// The logits of a pass over prompt and answer, from the row of the first token of the answer on.
std::vector<float> logits_of(Engine& engine, const api::SampleRequest& request,
                             const api::SampleResult& result) {
  api::Datum datum = {.tokens = request.prompt};
  datum.tokens.insert(datum.tokens.end(), result.tokens.begin(), result.tokens.end());
  api::TensorSink sink;
  run_batch(engine, {.sequences = {{.datum = &datum}}, .want_loss = false, .want_logits = true},
            &sink);
  const std::vector<float>& all = sink.at("logits").values;
  const int64_t skipped = (std::ssize(request.prompt) - 1) * engine.config().vocab_size;
  return {all.begin() + skipped, all.end()};
}

double log_sum_exp(std::span<const float> logits) {
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  return std::log(sum);
}

void expect_reference(Engine& engine, const Schemas& schemas, const api::SampleRequest& request,
                      const api::SampleResult& result) {
  const std::vector<float> logits = logits_of(engine, request, result);
  const auto vocab = static_cast<size_t>(engine.config().vocab_size);
  structured::Matcher matcher = schemas.start();
  std::vector<uint32_t> mask(structured::num_mask_words(engine.config().vocab_size));
  const std::span<const int32_t> tokens(result.tokens);
  for (size_t t = 0; t < tokens.size(); ++t) {
    matcher.fill_mask(mask);
    const std::span<const float> raw = std::span(logits).subspan(t * vocab, vocab);
    const std::vector<ops::TokenCount> answer = ops::counts_of(tokens.first(t));
    ops::TokenChoice asked = {.penalties = {.repetition = request.repetition_penalty,
                                            .frequency = request.frequency_penalty},
                              .before = {.prompt = request.prompt, .answer = answer}};
    const auto want = ops::ref::choice_probabilities(
        ops::ref::changed_logits(raw, asked),
        {.temperature = request.temperature, .top_k = request.top_k, .top_p = request.top_p},
        nullptr, mask);
    EXPECT_TRUE(want.contains(tokens[t])) << t;
    EXPECT_NEAR(result.logprobs[t],
                static_cast<double>(raw[static_cast<size_t>(tokens[t])]) - log_sum_exp(raw), 1e-4)
        << t;
    ASSERT_TRUE(matcher.accept(tokens[t]));
  }
  EXPECT_EQ(result.stopped, matcher.is_ended());
}

TEST_F(GrammarRows, SampleWhatTheReferenceChoosesUnderTheMask) {
  auto engine = tiny_engine({.dtype = DType::kF32});
  const Schemas schemas(engine->config().vocab_size);
  const auto requests = requests_of(*engine);
  SamplingLoop loop(*engine);
  const auto results = sample_fitting(loop, schemas, requests);
  int64_t num_ended = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    SCOPED_TRACE(i);
    expect_reference(*engine, schemas, requests[i], results[i]);
    if (!results[i].stopped) continue;
    ++num_ended;
    EXPECT_EQ(results[i].tokens.back(), schemas.end);  // though no request has it in `stop`
    const std::string text = schemas.tokenizer.decode(results[i].tokens, /*skip_special=*/true);
    boost::system::error_code fault;
    const boost::json::value json = boost::json::parse(text, fault);
    ASSERT_FALSE(fault) << text;
    EXPECT_TRUE(json.at("a").is_int64() || json.at("a").is_double()) << text;
    EXPECT_LE(json.at("b").as_array().size(), 4u) << text;
  }
  EXPECT_GT(num_ended, 0);
}

TEST_F(GrammarRows, OtherRowsKeepTheirBits) {
  auto engine = tiny_engine({});
  const Schemas schemas(engine->config().vocab_size);
  const auto requests = requests_of(*engine);
  const auto alone = sample(*engine, requests);
  SamplingLoop only(*engine);
  const auto fitting = sample_fitting(only, schemas, requests);
  SamplingLoop loop(*engine);
  std::vector<size_t> free, bound;
  for (const api::SampleRequest& request : requests) {
    free.push_back(loop.add(request));
    bound.push_back(loop.add(request));
    loop.set_matcher(bound.back(), schemas.start());
  }
  finish(loop);
  std::vector<api::SampleResult> of_free, of_bound;
  for (const size_t id : free) of_free.push_back(loop.take_result(id));
  for (const size_t id : bound) of_bound.push_back(loop.take_result(id));
  expect_equal(of_free, alone);
  expect_equal(of_bound, fitting);
}

// Rows of one prompt, each with a matcher of its own; one is set aside, with its pages and without.
TEST_F(GrammarRows, OfOnePromptAndSetAsideHaveTheBitsOfRowsAlone) {
  auto engine = tiny_engine({.options = {.page_size = 8}});
  const Schemas schemas(engine->config().vocab_size);
  api::SampleRequest request = request_of(*engine, 21, 5.0f);
  std::vector<api::SampleRequest> requests;
  for (uint64_t seed = 0; seed < 4; ++seed) requests.emplace_back(request).seed = seed;
  SamplingLoop alone(*engine);
  const auto want = sample_fitting(alone, schemas, requests);
  for (const bool keep : {true, false}) {
    SamplingLoop loop(*engine);
    const size_t group = loop.open_group(request, nullptr);
    const structured::Matcher start = schemas.start();
    std::vector<size_t> ids;
    for (const api::SampleRequest& each : requests) {
      ids.push_back(loop.add_row(group, each.seed));
      loop.set_matcher(ids.back(), start);
    }
    loop.close_group(group);
    for (int step = 0; step < 7; ++step) loop.step();
    loop.preempt_row(ids[1], keep);
    for (int step = 0; step < 5; ++step) loop.step();
    loop.resume(ids[1]);
    finish(loop);
    std::vector<api::SampleResult> got;
    for (const size_t id : ids) got.push_back(loop.take_result(id));
    expect_equal(got, want);
  }
}

// Drafts are read behind tokens that fit, and masks taken back behind them.
TEST_F(GrammarRows, DraftsMoveNoBit) {
  for (const auto& [model, drafts] :
       {std::pair("deepseek_v4_mtp", 1), std::pair("deepseek_v4_mtp", 3),
        std::pair("qwen3_5_mtp", 3)}) {
    const auto engine_with = [&](int64_t draft_tokens) {
      return tiny_engine({.model = model,
                          .dtype = DType::kF32,
                          .options = {.draft_tokens = draft_tokens},
                          .mtp = model::UseMtp::kAlways});
    };
    auto plain = engine_with(0), drafting = engine_with(drafts);
    const Schemas schemas(plain->config().vocab_size);
    const auto requests = requests_of(*plain);
    SamplingLoop without(*plain), with(*drafting);
    expect_equal(sample_fitting(with, schemas, requests),
                 sample_fitting(without, schemas, requests));
    EXPECT_GT(with.drafts().accepted, 10);
    EXPECT_GT(with.drafts().read, with.drafts().accepted);
  }
}

// As many as fill masks at once.
TEST_F(GrammarRows, ThreadsMoveNoBit) {
  auto one = tiny_engine({.threads = 1}), three = tiny_engine({.threads = 3});
  const Schemas schemas(one->config().vocab_size);
  const auto requests = requests_of(*one);
  SamplingLoop alone(*one), together(*three);
  expect_equal(sample_fitting(together, schemas, requests),
               sample_fitting(alone, schemas, requests));
}

// What a command was answered: a line each for its samples, or why it failed.
std::string answer_text(const api::Outcome& outcome) {
  if (const auto* failure = std::get_if<api::Failure>(&outcome)) return failure->message;
  std::string out;
  for (const api::SampledSequence& each : std::get<api::SampleOutput>(outcome).sequences) {
    for (size_t i = 0; i < each.tokens.size(); ++i)
      out += fmt::format("{} {:a}, ", each.tokens[i], each.logprobs[i]);
    out += each.stopped ? "ended\n" : "cut\n";
  }
  return out;
}

// Commands without a grammar and with one: of several samples; one that is soon ended; one of a
// letter that no token has.
std::vector<api::Command> commands_of(const Engine& engine, const Schemas& schemas) {
  std::vector<api::Command> out;
  const auto add = [&](const std::string& name, int64_t prompt, int64_t samples,
                       const std::string& schema) {
    api::Command one = sample(engine, name, prompt, static_cast<uint64_t>(prompt), samples);
    auto& asked = std::get<api::Sample>(one.op);
    asked.max_tokens = 40;
    asked.stop = {schemas.end};
    if (!schema.empty())
      asked.grammar = std::make_shared<const structured::Grammar>(schemas.compile(schema));
    out.push_back(std::move(one));
  };
  add("free", 12, 2, "");
  add("several", 9, 3, kSchema);
  add("soon ended", 17, 2, R"({"enum": [7, true]})");
  add("no token", 6, 2, R"({"const": "aB"})");
  add("free too", 21, 1, "");
  add("other", 30, 2, kSchema);
  return out;
}

// All of them in the same steps, and each alone.
TEST_F(GrammarRows, CommandsOfOneStepHaveTheBitsOfEachAlone) {
  for (const int64_t drafts : {0, 3}) {
    SCOPED_TRACE(drafts);
    const TinyEngine setup = {.model = "deepseek_v4_mtp",
                              .threads = 2,
                              .options = {.draft_tokens = drafts},
                              .mtp = model::UseMtp::kAlways};
    Server together(setup);
    const Schemas schemas(together.engine->config().vocab_size);
    const std::vector<api::Command> commands = commands_of(*together.engine, schemas);
    for (const api::Command& each : commands) together.submit(each);
    together.run();
    for (const api::Command& each : commands) {
      const std::string& name = each.request.text;
      Server alone(setup);
      const std::string want = answer_text(alone.ask(each));
      EXPECT_EQ(answer_text(together.posted[name].at(0)), want) << name;
      EXPECT_EQ(want.find("no token of the vocabulary may come next") != std::string::npos,
                name == "no token")
          << want;
      if (name == "soon ended") {
        EXPECT_EQ(want.find("cut"), std::string::npos) << want;
      }
    }
  }
}

// The first process alone has grammars. A command that names no end is one that no matcher is made
// for.
TEST_F(GrammarRows, ProcessesMoveNoBit) {
  const TinyEngine setup = {.model = "qwen2"};
  Server whole(setup, {}, {}, 1);
  const Schemas schemas(whole.engine->config().vocab_size);
  std::vector<api::Command> commands = commands_of(*whole.engine, schemas);
  commands.push_back(commands[1]);
  commands.back().request.text = "endless";
  std::get<api::Sample>(commands.back().op).stop.clear();
  for (const api::Command& each : commands) whole.submit(each);
  whole.run();
  EXPECT_NE(answer_text(whole.posted["endless"].at(0)).find("ends with an end token"),
            std::string::npos);
  for (const auto& [pipeline, tensor] : {std::pair{2, 1}, {1, 2}, {2, 2}}) {
    SCOPED_TRACE(fmt::format("pipeline={} tensor={}", pipeline, tensor));
    run_ranks(pipeline * tensor, [&, tensor = tensor](Comm& comm) {
      Server server(setup, comm, {}, {}, {.tensor = tensor});
      if (comm.rank() > 0)
        return follow_turns(comm, [&](api::BaseId) -> WorkRunner& { return server.runner; });
      for (const api::Command& each : commands) server.submit(each);
      server.run();
      for (const api::Command& each : commands) {
        const std::string& name = each.request.text;
        EXPECT_EQ(answer_text(server.posted[name].at(0)), answer_text(whole.posted[name].at(0)))
            << name;
      }
      server.turns->end();
    });
  }
}

TEST_F(GrammarRows, StagesMoveNoBit) {
  auto whole = tiny_engine({});
  const Schemas schemas(whole->config().vocab_size);
  const auto requests = requests_of(*whole);
  SamplingLoop loop(*whole);
  const auto stages = tiny_stages({}, 2);
  SamplingLoop staged(*stages, {});
  expect_equal(sample_fitting(staged, schemas, requests), sample_fitting(loop, schemas, requests));
}

}  // namespace
}  // namespace strata::engine
