// SPDX-License-Identifier: Apache-2.0
// strata data, strata eval, sweeps, recipes, samples on the way and runs that start from an
// adapter.
#include <gmock/gmock.h>

#include <boost/json.hpp>
#include <cmath>
#include <cstring>

#include "apps/data.h"
#include "apps/eval.h"
#include "tests/apps/program.h"
#include "tests/trainer/train_fixture.h"
#include "trainer/recipe.h"

namespace strata::apps {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class DataCommands : public TrainTest {
 protected:
  [[nodiscard]] Ran run(const std::vector<std::string>& arguments) const {
    Surroundings around;
    around.folder = root_;
    return run_program(arguments, "", around);
  }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(root_ + "/" + name) << text;
    return root_ + "/" + name;
  }
  // Files of a run's folder that hold results, without what differs by when they were made, or by
  // what was typed.
  [[nodiscard]] std::map<std::string, std::string> results(const std::string& out) const {
    std::map<std::string, std::string> all;
    for (const auto& entry : fs::recursive_directory_iterator(root_ + "/" + out)) {
      const std::string name = fs::relative(entry.path(), root_ + "/" + out).string();
      if (!entry.is_regular_file() || name == "metrics.jsonl" || name == "samples.jsonl") continue;
      if (name == "recipe.toml") continue;
      if (name.starts_with("events.") || name.ends_with(".svg")) continue;
      all[name] = content(entry.path().string());
    }
    return all;
  }
  void expect_same_run(const std::string& a, const std::string& b) const {
    const auto x = results(a), y = results(b);
    ASSERT_EQ(x.size(), y.size());
    EXPECT_GE(x.size(), 4u);
    for (const auto& [name, bytes] : x) {
      ASSERT_TRUE(y.contains(name)) << name;
      EXPECT_TRUE(bytes == y.at(name)) << name;
    }
    EXPECT_EQ(losses(a), losses(b));
  }
  [[nodiscard]] double last_eval_loss(const std::string& out) const {
    double last = NAN;
    for (const auto& record : report::read_metrics(root_ + "/" + out + "/metrics.jsonl")) {
      const double loss = record.number("eval_loss");
      if (std::isfinite(loss)) last = loss;
    }
    return last;
  }
};

TEST_F(DataCommands, FormsAndPackingTrainTheSameAdapter) {
  std::string alpaca = "[", messages;
  for (int i = 0; i < 20; ++i) {
    const std::string q = "What is " + std::to_string(i) + " plus 1?", a = std::to_string(i + 1);
    alpaca += (i > 0 ? ",\n" : "") + std::string("{\"instruction\": \"") + q +
              "\", \"input\": \"\", \"output\": \"" + a + "\"}";
    messages += "{\"messages\": [{\"role\": \"user\", \"content\": \"" + q +
                "\"}, {\"role\": \"assistant\", \"content\": \"" + a + "\"}]}\n";
  }
  TrainOptions o = options("ours");
  o.steps = 4;
  o.data = {write("ours.jsonl", messages)};
  ASSERT_EQ(run_train(o), 0);
  o.out = root_ + "/theirs";
  o.data = {write("alpaca.json", alpaca + "]")};
  ASSERT_EQ(run_train(o), 0);
  EXPECT_EQ(content(root_ + "/ours/adapter_model.safetensors"),
            content(root_ + "/theirs/adapter_model.safetensors"));
  EXPECT_EQ(losses("ours"), losses("theirs"));
}

TEST_F(DataCommands, WeightsAreResultsAndAreKnownToResume) {
  TrainOptions o = options("weights");
  o.steps = 3;
  o.data = {root_ + "/data.jsonl", write("more.jsonl", R"({"text": "1 2 3 4"})") + ":3"};
  ASSERT_EQ(run_train(o), 0);
  o.resume = true;
  o.data[1] = root_ + "/more.jsonl:2";
  EXPECT_THAT(fault(o), HasSubstr("data: was"));
  o.data[1] = root_ + "/more.jsonl:3";
  EXPECT_EQ(run_train(o), 0);
}

TEST_F(DataCommands, DataSaysWhatAFileHolds) {
  const std::string path =
      write("mixed.jsonl",
            "{\"prompt\": \"What is 1 plus 1?\", \"completion\": \" 2.\"}\n{\"text\": 7}\n\n"
            "{\"chosen\": \"a b\", \"rejected\": \"a c\"}\n{\"text\": \"one two three four five "
            "six\"}\n");
  const Ran ran = run({"data", path, "--model", "model", "--max-length", "8"});
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.out, HasSubstr("examples  3"));
  EXPECT_THAT(ran.out, HasSubstr("What is 1 plus 1?[[ 2."));
  EXPECT_THAT(ran.out, HasSubstr("faults    1"));
  EXPECT_THAT(ran.out, HasSubstr("of more than --max-length 8"));
  EXPECT_THAT(ran.err, HasSubstr("mixed.jsonl:2: text: got a number, want a string"));
  EXPECT_THAT(ran.err, HasSubstr("looks like preference pairs: chosen, rejected"));
  EXPECT_THAT(run({"data", "data.jsonl", "data.jsonl", "--model", "model"}).out,
              HasSubstr("examples  80"));
  const Ran json = run({"data", "--data", "data.jsonl", "--model", "model", "--json"});
  EXPECT_EQ(json.code, 0);
  const boost::json::object line = boost::json::parse(json.out).as_object();
  EXPECT_EQ(line.at("examples").as_int64(), 40);
  EXPECT_EQ(line.at("shown").as_array().size(), 3u);
  EXPECT_EQ(line.at("faults").as_int64(), 0);
  int64_t binned = 0;
  for (const auto& bin : line.at("histogram").as_array()) binned += bin.as_array()[2].as_int64();
  EXPECT_EQ(binned, 40);
}

// A file that somebody else wrote cannot clear the screen.
TEST_F(DataCommands, TextsOfExamplesGiveATerminalNoOrders) {
  const std::string path = write("hostile.jsonl", "{\"text\": \"one\\n\\ttwo \\u001b[2Jthree\"}\n");
  const Ran ran = run({"data", path, "--model", "model"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, Not(HasSubstr("\x1b")));
  EXPECT_THAT(ran.out, HasSubstr("\n\ttwo \uFFFD[2Jthree"));
}

// Of eval's JSON: the result of an adapter (0: the base) on a part of the data.
double figure(const Ran& ran, size_t part, size_t adapter, const char* name) {
  const boost::json::value line = boost::json::parse(ran.out);
  return line.at("data").at(part).at("results").at(adapter).at(name).to_number<double>();
}

TEST_F(DataCommands, EvalHasTheBitsOfTrainsEvaluation) {
  write("held.jsonl",
        "{\"prompt\": \"What is 3 plus 1?\", \"completion\": \" 4.\"}\n"
        "{\"text\": \"1 2 3 4 5 6 7 8 9 10 11\"}\n"
        "{\"prompt\": \"What is 5 plus 1?\", \"completion\": \" 6.\"}\n");
  write("other.jsonl", "{\"text\": \"What is 7?\"}\n{\"text\": \"What is 8?\"}\n");
  TrainOptions o = options("out");
  o.eval = {root_ + "/held.jsonl"};
  o.steps = 6;
  o.micro_tokens = 30;
  ASSERT_EQ(run_train(o), 0);
  o.out = root_ + "/second";
  o.lr = 3e-2;
  o.eval = {root_ + "/held.jsonl", root_ + "/other.jsonl"};
  ASSERT_EQ(run_train(o), 0);
  const std::vector<std::string> line = {"eval", "--model",   "model", "--micro-tokens",
                                         "30",   "--threads", "2",     "--json"};
  auto with = line;
  with.insert(with.end(), {"--adapter", "out", "--adapter", "second", "--data", "held.jsonl",
                           "--data", "other.jsonl"});
  const Ran both = run(with);
  ASSERT_EQ(both.code, 0) << both.err;
  EXPECT_EQ(figure(both, 0, 1, "loss"), last_eval_loss("out"));
  EXPECT_EQ(figure(both, 2, 2, "loss"), last_eval_loss("second"));  // of all files
  // Of the base it is what train begins with.
  EXPECT_EQ(figure(both, 0, 0, "loss"),
            report::read_metrics(root_ + "/out/metrics.jsonl").front().number("eval_loss"));
  EXPECT_EQ(figure(both, 0, 1, "perplexity"), std::exp(figure(both, 0, 1, "loss")));
  auto alone = line;
  alone.insert(alone.end(), {"--adapter", "second", "--data", "held.jsonl"});
  const Ran one = run(alone);
  EXPECT_EQ(figure(one, 0, 1, "loss"), figure(both, 0, 2, "loss"));
  EXPECT_EQ(figure(one, 0, 1, "accuracy"), figure(both, 0, 2, "accuracy"));
  // In words, and with the adapter's base found by itself.
  const Ran table = run({"eval", "--adapter", "out", "--data", "held.jsonl"});
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("held.jsonl (3 examples, "));
}

// tools/golden/make_eval.py: transformers and PEFT. The bar is that of goldens in f32
// (numerics.md).
TEST_F(DataCommands, EvalIsTransformersLossAndAccuracy) {
  const std::string source = STRATA_SOURCE_DIR, golden = source + "/tests/golden/eval";
  const boost::json::value expected = boost::json::parse(content(golden + "/expected.json"));
  const Ran ran =
      run({"eval", "--model", source + "/models/tiny-qwen3", "--adapter", golden + "/adapter",
           "--data", source + "/examples/answers_heldout.jsonl", "--dtype", "f32", "--json"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const boost::json::value line = boost::json::parse(ran.out);
  const auto want = [&](const char* dtype, const char* model) {
    return expected.at(dtype).at(model);
  };
  EXPECT_EQ(line.at("data").at(0).at("trained_tokens"),
            want("float64", "base").at("trained_tokens"));
  size_t index = 0;
  for (const char* model : {"base", "adapter"}) {
    SCOPED_TRACE(model);
    const double exact = want("float64", model).at("loss").as_double();
    const double theirs = want("float32", model).at("loss").as_double();
    const double bar = std::max(10 * std::abs(theirs / exact - 1), 2e-6);
    EXPECT_NEAR(figure(ran, 0, index, "loss") / exact, 1, bar);
    EXPECT_EQ(figure(ran, 0, index, "accuracy"), want("float64", model).at("accuracy").as_double());
    ++index;
  }
}

TEST_F(DataCommands, AccuracyCountsTokensThatNoOtherIsLikelierThan) {
  // An adapter that knows its one sentence by heart gets all of it right.
  write("one.jsonl", "{\"prompt\": \"What is 3 plus 1?\", \"completion\": \" 4.\"}\n");
  TrainOptions o = options("out");
  o.data = {root_ + "/one.jsonl"};
  o.eval_fraction = 0;
  o.rank = 16;
  o.steps = 60;
  o.lr = 3e-2;
  ASSERT_EQ(run_train(o), 0);
  const Ran ran =
      run({"eval", "--model", "model", "--adapter", "out", "--data", "one.jsonl", "--json"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(figure(ran, 0, 1, "accuracy"), 1.0);
  EXPECT_LT(figure(ran, 0, 0, "accuracy"), 1.0);
}

// Of a model that is broken; of any text, perplexity alone may be more than a number holds.
TEST_F(DataCommands, JsonHasNullForWhatIsNoNumber) {
  const std::string weights = model() + "/model.safetensors";
  std::string bytes = content(weights);
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof(header));
  std::fill(bytes.begin() + static_cast<int64_t>(sizeof(header) + header), bytes.end(), '\xff');
  std::ofstream(weights, std::ios::binary) << bytes;  // of f32 NaN
  const Ran ran = run({"eval", "--model", "model", "--data", "data.jsonl", "--json"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const boost::json::value result =
      boost::json::parse(ran.out).at("data").at(0).at("results").at(0);
  EXPECT_TRUE(result.at("loss").is_null() && result.at("perplexity").is_null()) << ran.out;
  const Ran converted = run({"convert", "--model", "model", "--type", "bf16", "--out", "bf16",
                             "--report", "report.json"});
  ASSERT_EQ(converted.code, 0) << converted.err;
  const boost::json::value report = boost::json::parse(content(root_ + "/report.json"));
  EXPECT_TRUE(report.at("tensors").at(0).at("rms").is_null());
}

TEST_F(DataCommands, EachRateOfASweepHasTheBitsOfItsOwnRun) {
  TrainOptions o = options("sweep");
  o.steps = 12;
  o.lr.reset();
  o.sweep = {"1e-3", "1e-2", "0.03"};
  o.keep_best = true;
  ASSERT_EQ(run_train(o), 0);
  for (const auto& [rate, value] : {std::pair<std::string, double>{"1e-3", 1e-3}, {"0.03", 0.03}}) {
    SCOPED_TRACE(rate);
    TrainOptions own = o;
    own.sweep.clear();
    own.lr = value;
    own.out = root_ + "/own-" + rate;
    ASSERT_EQ(run_train(own), 0);
    expect_same_run("sweep/lr-" + rate, "own-" + rate);
  }
  EXPECT_THAT(content(root_ + "/sweep/sweep.md"), HasSubstr("| 0.03 | "));
  EXPECT_THAT(content(root_ + "/sweep/sweep.svg"), HasSubstr("lr 1e-2"));
  EXPECT_THAT(fault(o), HasSubstr("holds a run already"));
  o.resume = true;  // nothing is left to do
  EXPECT_EQ(run_train(o), 0);
  o.method = "full";
  EXPECT_THAT(fault(o), HasSubstr("--method full has none"));
}

// The one rate ends; what the other writes is what its own run writes.
TEST_F(DataCommands, ARateThatDivergesEndsAlone) {
  TrainOptions o = options("sweep");
  o.steps = 6;
  o.lr.reset();
  o.sweep = {"1e30", "1e-3"};
  o.json = true;
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const int code = run_train(o);
  const std::string told = ::testing::internal::GetCapturedStderr();
  const std::string json = ::testing::internal::GetCapturedStdout();
  ASSERT_EQ(code, 0) << told;
  EXPECT_THAT(told, HasSubstr("saved: " + o.out + "/lr-1e-3\n"));
  EXPECT_THAT(
      told, HasSubstr("the lowest loss has lr 1e-3; try it: strata chat " + o.out + "/lr-1e-3\n"));
  const boost::json::value sweep = boost::json::parse(json);
  EXPECT_TRUE(sweep.at("sweep").at(0).at("loss").is_null()) << json;
  EXPECT_TRUE(sweep.at("sweep").at(0).at("eval_loss").is_null()) << json;
  EXPECT_TRUE(sweep.at("sweep").at(1).at("loss").is_double()) << json;
  EXPECT_THAT(content(root_ + "/sweep/sweep.md"), HasSubstr("| diverged |"));
  EXPECT_FALSE(fs::exists(root_ + "/sweep/lr-1e30/adapter_model.safetensors"));
  TrainOptions own = o;
  own.sweep.clear();
  own.lr = 1e-3;
  own.out = root_ + "/own";
  ASSERT_EQ(run_train(own), 0);
  expect_same_run("sweep/lr-1e-3", "own");
  o.out = root_ + "/none";
  o.sweep = {"1e30", "1e29"};
  EXPECT_THAT(fault(o), HasSubstr("every rate diverged"));
}

TEST_F(DataCommands, ASweepThatIsKilledGoesOn) {
  TrainOptions o = options("whole");
  o.steps = 12;
  o.lr.reset();
  o.sweep = {"1e-3", "1e-2"};
  ASSERT_EQ(run_train(o), 0);
  o.out = root_ + "/parts";
  ASSERT_EQ(run_train(o), 0);
  // As if one of the two had been stopped before its first save.
  fs::remove_all(root_ + "/parts/lr-1e-2");
  o.resume = true;
  ASSERT_EQ(run_train(o), 0);
  expect_same_run("whole/lr-1e-2", "parts/lr-1e-2");
  expect_same_run("whole/lr-1e-3", "parts/lr-1e-3");
}

TEST_F(DataCommands, SamplesAndEventsChangeNoBit) {
  for (const char* method : {"lora", "full"}) {
    SCOPED_TRACE(method);
    const std::string name = method;
    TrainOptions o = options(name + "-plain");
    o.method = method;
    o.steps = 8;
    o.eval_every = 2;
    ASSERT_EQ(run_train(o), 0);
    o.out = root_ + "/" + name + "-sampled";
    o.samples = {"What is 3 plus 1?", "Hello"};
    o.tensorboard = root_ + "/" + name + "-events";
    ASSERT_EQ(run_train(o), 0);
    expect_same_run(name + "-plain", name + "-sampled");
    // Before the first step, and at 2, 4, 6 and 8.
    EXPECT_EQ(lines_of(o.out + "/samples.jsonl"), 10);
    EXPECT_THAT(content(o.out + "/samples.jsonl"),
                HasSubstr(R"({"step":8,"prompt":"Hello","text":)"));
    EXPECT_FALSE(fs::is_empty(o.tensorboard));
  }
  TrainOptions alone = options("alone");  // without evaluation examples
  alone.eval_fraction = 0;
  alone.steps = 4;
  alone.eval_every = 2;
  EXPECT_THAT(fault(alone), HasSubstr("--eval-every: there are no evaluation examples"));
  alone.samples = {"Hello"};
  ASSERT_EQ(run_train(alone), 0);
  EXPECT_EQ(lines_of(alone.out + "/samples.jsonl"), 3);
}

TEST_F(DataCommands, StagesSampleTogether) {
  const auto options_of = [&](const std::string& out, int stages) {
    TrainOptions o = options(out);
    o.model = deep_model(4);
    o.steps = 4;
    o.eval_every = 2;
    o.samples = {"What is 3 plus 1?", "Hello"};
    o.stages.stages = o.stages.microbatches = stages;
    return o;
  };
  for (const int stages : {1, 2, 3}) {
    const TrainOptions o = options_of(std::to_string(stages), stages);
    ASSERT_EQ(run_train(o), 0);
    EXPECT_EQ(lines_of(o.out + "/samples.jsonl"), 6);
    EXPECT_EQ(content(o.out + "/samples.jsonl"), content(root_ + "/1/samples.jsonl"));
  }
  TrainOptions chunks = options_of("chunks", 2);
  chunks.stages.chunks = 2;
  chunks.stages.schedule = "circular";
  EXPECT_THAT(fault(chunks),
              HasSubstr("--sample or --loss grpo, and --chunks: ranks that have several stages"));
}

TEST_F(DataCommands, ARunStartsFromAnAdapter) {
  TrainOptions o = options("first");
  o.steps = 5;
  o.rank = 3;
  o.targets = "q_proj,up_proj";
  ASSERT_EQ(run_train(o), 0);
  TrainOptions next = options("next");
  next.rank = TrainOptions().rank;
  next.adapter = o.out;
  next.steps = 5;
  ASSERT_EQ(run_train(next), 0);
  EXPECT_EQ(values_of(next.out, "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight",
                      "adapter_model.safetensors")
                .size(),
            3u * 32u);
  // It begins where the first one ended.
  EXPECT_EQ(report::read_metrics(next.out + "/metrics.jsonl").front().number("eval_loss"),
            last_eval_loss("first"));
  // It is resumed with its own moments, and without the adapter it is another run.
  next.resume = true;
  EXPECT_EQ(run_train(next), 0);
  next.adapter.clear();
  next.rank = 3;
  next.targets = o.targets;
  EXPECT_THAT(fault(next), HasSubstr("adapter: was"));
  next.adapter = o.out;
  next.resume = false;
  next.out = root_ + "/other";
  EXPECT_THAT(fault(next), HasSubstr("--rank and --adapter"));
}

TEST_F(DataCommands, ARecipeIsItsOptionsByHand) {
  const std::vector<std::string> by_hand = {
      "train",           "model", "--data",  "data.jsonl", "--rank",         "4",
      "--learning-rate", "1e-2",  "--steps", "6",          "--batch-tokens", "120",
      "--threads",       "2",     "--out",   "hand",       "--save-config",  "recipe.toml"};
  const Ran hand = run(by_hand);
  ASSERT_EQ(hand.code, 0) << hand.err;
  const std::string recipe = content(root_ + "/recipe.toml");
  EXPECT_THAT(recipe, HasSubstr("data = [\"data.jsonl\"]\n"));
  EXPECT_THAT(recipe, HasSubstr("rank = 4\n"));
  EXPECT_THAT(recipe, Not(HasSubstr("hand\"")));
  EXPECT_THAT(recipe, Not(HasSubstr("save-config")));
  const Ran again = run({"train", "--config", "recipe.toml", "--out", "again"});
  ASSERT_EQ(again.code, 0) << again.err;
  expect_same_run("hand", "again");
  // What TOML's numbers do not hold, several rates, and texts with quotes come back too.
  TrainOptions odd, back;
  odd.data = {"a \"b\".jsonl:2"};
  odd.seed = UINT64_MAX;
  odd.sweep = {"1e-4", "3e-4"};
  odd.keep_best = true;
  odd.alpha = 0.1;
  const std::string path = write("odd.toml", recipe_text(odd));
  const OptionTable table = option_table_of(back);
  for (const auto& [name, values] : read_recipe(path, table)) {
    for (const std::string& value : values) table.find(name)->set(value);
  }
  EXPECT_EQ(recipe_text(back), recipe_text(odd));
  EXPECT_EQ(back.seed, odd.seed);
  EXPECT_EQ(back.data, odd.data);
  // The command line wins.
  const Ran other = run({"train", "--config", "recipe.toml", "--out", "other", "--rank", "2"});
  ASSERT_EQ(other.code, 0) << other.err;
  EXPECT_THAT(content(root_ + "/other/adapter_config.json"), HasSubstr("\"r\": 2"));
  const auto refused = [&](const std::string& text) {
    write("bad.toml", text);
    const Ran ran = run({"train", "--config", "bad.toml", "--out", "bad"});
    EXPECT_EQ(ran.code, 2);
    return ran.err;
  };
  EXPECT_THAT(refused("rnak = 3\n"), HasSubstr("bad.toml:1: 'rnak' is no option of strata train"));
  EXPECT_THAT(refused("out = \"x\"\n"), HasSubstr("'out' says where one run is"));
  EXPECT_THAT(refused("rank = [1, 2]\n"), HasSubstr("got a list, want one value"));
  EXPECT_THAT(refused("json = 3\n"), HasSubstr("'json': want true or false"));
  EXPECT_THAT(refused("rank = \n"), HasSubstr("bad.toml:1: "));
  EXPECT_THAT(refused("rank = 0\n"), HasSubstr("--rank: got 0, want 1 or more"));
}

// Peak memory of a run over so many lines, in bytes.
double peak_of(const std::string& root, int64_t lines, const std::string& packer) {
  const std::string name = root + "/lines" + std::to_string(lines) + ".jsonl";
  {
    std::ofstream file(name);
    for (int64_t i = 0; i < lines; ++i) {
      file << R"({"prompt": "What is )" << i << R"( plus 1?", "completion": " )" << i + 1
           << "\"}\n";
    }
  }
  std::string path = name;
  if (!packer.empty()) {
    path += ".gz";
    EXPECT_EQ(std::system((packer + " < " + name + " > " + path).c_str()), 0);
  }
  const Ran ran =
      run_program({"train", "--model", root + "/model", "--data", path, "--out", path + ".out",
                   "--steps", "1", "--eval-fraction", "0", "--threads", "2", "--json"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  fs::remove(name);
  return boost::json::parse(ran.out).at("peak_rss_gib").as_double() * (1 << 30);
}

TEST_F(DataCommands, DISABLED_AMillionLinesTakeLittleMoreThanAThousand) {
  const double few = peak_of(root_, 1000, "");
  EXPECT_LT(peak_of(root_, 1'000'000, "") - few, 200e6);
  EXPECT_LT(peak_of(root_, 1'000'000, "gzip -1") - few, 200e6);
}

}  // namespace
}  // namespace strata::apps
