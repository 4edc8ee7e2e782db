// SPDX-License-Identifier: Apache-2.0
// What may be typed for a model, through the program: directories with and without --model, LoRA
// adapters, names of the Hugging Face hub in a made cache, `strata pull` with a stand-in for hf,
// and what is no model.
#include "apps/resolve_paths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "apps/serve/options.h"
#include "tests/apps/resolve_paths_fixture.h"

namespace strata::apps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(ResolvePaths, TheModelMayStandWithoutItsOption) {
  for (const char* command : {"chat", "generate"}) {
    const Ran named = run(with({command, "--model", "model"}, kAsk));
    EXPECT_EQ(named.code, 0) << named.err;
    EXPECT_EQ(run(with({command, "model"}, kAsk)).out, named.out) << command;
    EXPECT_EQ(run(with(with({command}, kAsk), {"model"})).out, named.out) << command;
  }
  expect_works({"inspect", "model"});
  expect_works({"plan", "model", "--tokens", "1x16"});
  expect_works({"train", "model", "--data", "data.jsonl", "--out", "bare", "--steps", "1"});
  std::ofstream(root_ + "/r.json") << R"({"sequences": [{"tokens": [1, 2]}], "want": ["logits"]})";
  expect_works({"probe", "model", "--request", "r.json", "--out", "o.safetensors"});
  expect_works({"init", "--config", "model", "--out", "again"});
  expect_refused({"chat", "model", "--model", "other"}, "--model is given 2 times");
  expect_refused({"chat", "model", "other"}, "not expected: other; model is model");
}

TEST_F(ResolvePaths, AnAdapterStandsForItsBaseAndItself) {
  const std::string adapter = make_adapter("model");  // seen from where the program runs
  const Ran named = run(with({"chat", "--model", "model", "--adapter", adapter}, kAsk));
  ASSERT_EQ(named.code, 0) << named.err;
  EXPECT_NE(named.out, run(with({"chat", "model"}, kAsk)).out);
  EXPECT_EQ(run(with({"chat", "adapter"}, kAsk)).out, named.out);
  EXPECT_EQ(run(with({"chat", "--model", "adapter"}, kAsk)).out, named.out);
  EXPECT_EQ(run(with({"chat", "--adapter", "adapter"}, kAsk)).out, named.out);
  expect_refused(with({"chat", "adapter", "--adapter", "adapter"}, kAsk),
                 "--model is a LoRA adapter itself");
  // To go on with, and to be planned and measured by its base.
  expect_works({"train", "adapter", "--data", "data.jsonl", "--out", "more", "--steps", "1"});
  expect_refused({"train", "adapter", "--data", "data.jsonl", "--out", "x", "--method", "full"},
                 "--adapter and --method full");
  EXPECT_EQ(run({"plan", "adapter", "--tokens", "1x16", "--json"}).code, 0);
  expect_works({"init", "--config", "adapter", "--out", "as-its-base"});
  // By the name that a server would call it.
  EXPECT_EQ(run(with({"chat", "--adapter", "mine=adapter"}, kAsk)).out, named.out);
  expect_works({"merge", "model", "--adapter", "mine=adapter:0.5", "--out", "merged"});
  expect_refused(with({"chat", "model", "--adapter", "model"}, kAsk),
                 "this is a model, want a LoRA");
}

TEST_F(ResolvePaths, ABaseMayBeNamedAsSeenFromItsAdapter) {
  const std::string adapter = make_adapter("../model");
  fs::create_directories(root_ + "/elsewhere/deep");
  around_.folder = root_ + "/elsewhere/deep";
  expect_works(with({"chat", adapter}, kAsk));
}

TEST_F(ResolvePaths, ABaseThatIsNotHereIsAskedForByName) {
  const std::string adapter = make_adapter("Org/Tiny-1.5");
  const Ran ran = run(with({"chat", "adapter"}, kAsk));
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, HasSubstr("its base model 'Org/Tiny-1.5' is neither"));
  EXPECT_THAT(ran.err, HasSubstr("hf download Org/Tiny-1.5"));
  EXPECT_THAT(ran.err, HasSubstr("--model BASE --adapter adapter"));
  make_snapshot(root_ + "/home/.cache/huggingface/hub", "abc");
  expect_works(with({"chat", "adapter"}, kAsk));
}

TEST_F(ResolvePaths, InspectSaysWhatAnAdapterAdaptsAndWhatIsWrong) {
  const std::string adapter = make_adapter("model");
  const Ran ran = run({"inspect", "adapter"});
  EXPECT_EQ(ran.code, 0) << ran.out << ran.err;
  for (const char* what :
       {"LoRA adapter", "model", "1 q_proj", "1 down_proj", "rank", "4", "alpha", "F32"}) {
    EXPECT_THAT(ran.out, HasSubstr(what));
  }
  const Ran json = run({"inspect", "--model", "adapter", "--json"});
  EXPECT_THAT(json.out, HasSubstr(R"("ranks":[4])"));
  EXPECT_THAT(json.out, HasSubstr(R"("base":"model")"));
  EXPECT_THAT(json.out, HasSubstr(R"("faults":[])"));
  // Of another model: modules that it lacks.
  fs::rename(root_ + "/model", root_ + "/away");
  expect_works({"inspect", "adapter"});
  std::string config = content(root_ + "/config/config.json");
  config.replace(config.find("\"hidden_size\": 32"), 17, "\"hidden_size\": 64");
  std::ofstream(root_ + "/config/config.json") << config;
  ASSERT_EQ(run_init({.config = root_ + "/config", .out = model(), .seed = 1, .threads = 2}), 0);
  const Ran other = run({"inspect", "adapter"});
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.out, HasSubstr("FAULT"));
  EXPECT_THAT(other.out, HasSubstr("shape"));
  // A file that ends too early.
  fs::resize_file(adapter + "/adapter_model.safetensors", 100);
  const Ran broken = run({"inspect", "adapter"});
  EXPECT_EQ(broken.code, 2);
  EXPECT_THAT(broken.out, HasSubstr("FAULT"));
}

TEST_F(ResolvePaths, ANameOfTheHubIsFoundInEachCache) {
  struct Case {
    const char* variable;
    const char* value;
    const char* cache;
  };
  const Case cases[] = {{"HF_HUB_CACHE", "/a", "/a"},
                        {"HF_HOME", "/b", "/b/hub"},
                        {"XDG_CACHE_HOME", "/c", "/c/huggingface/hub"},
                        {"HOME", "/d", "/d/.cache/huggingface/hub"}};
  for (const Case& c : cases) {
    const Surroundings before = around_;
    around_.variables[c.variable] = root_ + c.value;
    expect_refused({"inspect", "Org/Tiny-1.5"}, "hf download Org/Tiny-1.5");
    make_snapshot(root_ + c.cache, "abc123");
    make_snapshot(root_ + c.cache, "def456");
    set_ref(root_ + c.cache, "def456\n");
    const Ran ran = run({"inspect", "Org/Tiny-1.5"});
    EXPECT_EQ(ran.code, 0) << c.variable << ran.err;
    EXPECT_THAT(ran.out, HasSubstr("snapshots/def456")) << c.variable;
    around_ = before;
  }
}

TEST_F(ResolvePaths, WithoutARefTheOnlySnapshotIsTaken) {
  const std::string cache = root_ + "/cache";
  around_.variables["HF_HUB_CACHE"] = cache;
  make_snapshot(cache, "abc123");
  expect_works({"inspect", "Org/Tiny-1.5"});
  expect_works(with({"chat", "Org/Tiny-1.5"}, kAsk));
  make_snapshot(cache, "def456");
  expect_refused({"inspect", "Org/Tiny-1.5"}, "hf download Org/Tiny-1.5");
}

TEST_F(ResolvePaths, ARefNamesASnapshotAndNothingElse) {
  const std::string cache = root_ + "/cache";
  around_.variables["HF_HUB_CACHE"] = cache;
  make_snapshot(cache, "abc123");
  for (const std::string& bad : {std::string("../../../model"), std::string(""), std::string("/"),
                                 std::string("fff"), std::string(5000, 'a'), std::string("..")}) {
    set_ref(cache, bad);
    expect_refused({"inspect", "Org/Tiny-1.5"}, "hf download Org/Tiny-1.5");
  }
  set_ref(cache, "abc123");
  expect_works({"inspect", "Org/Tiny-1.5"});
}

TEST_F(ResolvePaths, ADirectoryThatIsHereWinsOverAName) {
  around_.variables["HF_HUB_CACHE"] = root_ + "/cache";
  make_snapshot(root_ + "/cache", "abc123");
  fs::create_directories(root_ + "/Org");
  fs::copy(model(), root_ + "/Org/Tiny-1.5");
  const Ran ran = run({"inspect", "Org/Tiny-1.5"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, Not(HasSubstr("snapshots")));
}

TEST_F(ResolvePaths, AnAdapterOfAHubModelNamesItAsTheHubDoes) {
  around_.variables["HF_HUB_CACHE"] = root_ + "/cache";
  make_snapshot(root_ + "/cache", "abc123");
  expect_works({"train", "Org/Tiny-1.5", "--data", "data.jsonl", "--out", "tuned", "--steps", "1"});
  EXPECT_THAT(content(root_ + "/tuned/adapter_config.json"),
              HasSubstr(R"("base_model_name_or_path": "Org/Tiny-1.5")"));
  expect_works(with({"chat", "tuned"}, kAsk));
}

TEST_F(ResolvePaths, AServerFindsModelsOfTheHubAndCallsTheirTokenizersSo) {
  expect_refused({"serve", "--model", "tiny=Org/Tiny-1.5", "--data", "state", "--no-keys"},
                 "hf download Org/Tiny-1.5");
  const std::string snapshot = make_snapshot(root_ + "/cache", "abc123");
  ::setenv("HF_HUB_CACHE", (root_ + "/cache").c_str(), 1);
  server::ServeOptions options;
  options.models = {"tiny=Org/Tiny-1.5", "mine=" + model(), "same=Org/Tiny-1.5"};
  options.tokenizers = {"same=other"};
  resolve_paths(options);
  ::unsetenv("HF_HUB_CACHE");
  EXPECT_THAT(options.models,
              ElementsAre("tiny=" + snapshot, "mine=" + model(), "same=" + snapshot));
  EXPECT_THAT(options.tokenizers, ElementsAre("same=other", "tiny=Org/Tiny-1.5"));
}

TEST_F(ResolvePaths, ADownloadThatDidNotEndIsCalledSo) {
  around_.variables["HF_HUB_CACHE"] = root_ + "/cache";
  fs::remove(make_snapshot(root_ + "/cache", "abc123") + "/model.safetensors");
  expect_refused(with({"chat", "Org/Tiny-1.5"}, kAsk),
                 "has no weights: a download that did not end?");
}

TEST_F(ResolvePaths, PullRunsHfAndSaysWhatIsNext) {
  around_.variables["HF_HUB_CACHE"] = root_ + "/cache";
  make_hf(
      "printf '%s|' \"$@\" > arguments\n"
      "mkdir -p cache/models--Org--Tiny-1.5/snapshots\n"
      "ln -s " +
      model() + " cache/models--Org--Tiny-1.5/snapshots/abc\n");
  const Ran ran = run({"pull", "Org/Tiny-1.5"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(content(root_ + "/arguments"), "download|Org/Tiny-1.5|");
  EXPECT_THAT(ran.err, HasSubstr("strata chat Org/Tiny-1.5"));
  expect_works(with({"chat", "Org/Tiny-1.5"}, kAsk));
}

TEST_F(ResolvePaths, PullLeavesHfTheTerminal) {
  around_.variables["HF_HUB_CACHE"] = root_ + "/cache";
  make_snapshot(root_ + "/cache", "abc");
  make_hf("if [ -t 0 ] && [ -t 1 ] && [ -t 2 ]; then echo a terminal; else echo none; fi\n");
  Terminal terminal({"pull", "Org/Tiny-1.5"}, around_);
  terminal.expect("a terminal");
  EXPECT_EQ(terminal.wait(), 0);
}

TEST_F(ResolvePaths, PullSaysWhatFailed) {
  around_.variables["PATH"] = root_ + "/bin";
  expect_refused({"pull", "Org/Tiny-1.5"}, "pip install huggingface_hub");
  // Debian's own pip refuses to (PEP 668).
  expect_refused({"pull", "Org/Tiny-1.5"}, "pipx install huggingface_hub");
  make_hf("echo no such model >&2; exit 3\n");
  const Ran failed = run({"pull", "Org/Tiny-1.5"});
  EXPECT_EQ(failed.code, 1);
  EXPECT_THAT(failed.err, HasSubstr("no such model\n"));
  EXPECT_THAT(failed.err, HasSubstr("hf download Org/Tiny-1.5 ended with exit code 3"));
  make_hf("exit 0\n");
  expect_refused({"pull", "Org/Tiny-1.5"}, "in no cache of the hub");
  expect_refused({"pull"}, "pull: this is required:\n  name");
}

TEST_F(ResolvePaths, ADataSetOfTheHubIsFoundByItsName) {
  const std::string cache = root_ + "/cache";
  around_.variables["HF_HUB_CACHE"] = cache;
  const std::vector<std::string> look = {"data", "--model", "model", "--data"};
  expect_refused(with(look, {"Org/faq"}),
                 "hf download --repo-type dataset Org/faq (or strata pull");
  const std::string snapshot = cache + "/datasets--Org--faq/snapshots/abc";
  fs::create_directories(snapshot + "/data");
  std::ofstream(snapshot + "/dataset_infos.json") << "{}";
  std::ofstream(snapshot + "/data/train.parquet") << "PAR1";
  expect_refused(with(look, {"Org/faq"}), "`strata pull --dataset Org/faq` makes JSONL of it");
  fs::create_symlink(root_ + "/data.jsonl", snapshot + "/data/train-0.jsonl");
  std::ofstream(snapshot + "/data/test-0.jsonl") << "no record\n";
  EXPECT_EQ(run(with(look, {"Org/faq"})).out,
            run(with(look, {snapshot + "/data/train-0.jsonl"})).out);
  expect_works({"train", "model", "--data", "Org/faq:2", "--eval", "data.jsonl", "--out", "tuned",
                "--steps", "1"});
  fs::create_directories(snapshot + "/more");
  std::ofstream(snapshot + "/more/train-1.jsonl") << "{}\n";
  expect_refused(with(look, {"Org/faq"}), "files in several folders; give one of them: ");
  expect_refused(with(look, {"gone/data.jsonl"}), "gone/data.jsonl: no such file");
}

TEST_F(ResolvePaths, PullMakesJsonlOfADataSetsParquet) {
  around_.variables["HF_HUB_CACHE"] = root_ + "/cache";
  make_hf(
      "printf '%s|' \"$@\" > arguments\n"
      "mkdir -p cache/datasets--Org--faq/snapshots/abc/data\n"
      "echo PAR1 > cache/datasets--Org--faq/snapshots/abc/data/train.parquet\n");
  // Without pyarrow, and then with a stand-in for it.
  const auto make_python = [&](const std::string& body) {
    std::ofstream(root_ + "/bin/python3") << "#!/bin/sh\n" << body;
    fs::permissions(root_ + "/bin/python3", fs::perms::owner_all);
  };
  make_python("exit 1\n");
  expect_refused({"pull", "--dataset", "Org/faq"}, "want a python3 with pyarrow");
  EXPECT_EQ(content(root_ + "/arguments"), "download|--repo-type|dataset|Org/faq|");
  make_python("[ $# = 3 ] || exit 0\necho '{\"text\": \"a\"}'\n");
  const Ran ran = run({"pull", "--dataset", "Org/faq"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("strata data MODEL --data faq/data-train.jsonl"));
  EXPECT_EQ(content(root_ + "/faq/data-train.jsonl"), "{\"text\": \"a\"}\n");
  make_python("[ $# = 3 ] || exit 0\nexit 4\n");
  const Ran failed = run({"pull", "--dataset", "Org/faq", "--out", "other"});
  EXPECT_EQ(failed.code, 1);
  EXPECT_THAT(failed.err, HasSubstr("python3 ended with exit code 4"));
  EXPECT_TRUE(fs::is_empty(root_ + "/other"));
  expect_refused({"pull", "Org/faq", "--out", "x"}, "--out is of --dataset alone");
}

TEST_F(ResolvePaths, PullTakesNamesOfTheHubAlone) {
  make_hf("touch called\n");
  for (const char* bad : {"Qwen3", "a/b/c", "a/..", "../b", "a/b;touch x", "a/b c", "a/$(touch x)",
                          "a/-b", "-a/b", "a/b--c", "/b", "a/", "https://huggingface.co/a/b"}) {
    const Ran ran = run({"pull", "--", bad});
    EXPECT_EQ(ran.code, 2) << bad;
    EXPECT_THAT(ran.err, HasSubstr("want ORG/NAME")) << bad;
  }
  EXPECT_FALSE(fs::exists(root_ + "/called"));
  // An underscore is a letter there.
  EXPECT_THAT(run({"pull", "--", "_a/b_"}).err, HasSubstr("in no cache of the hub"));
  EXPECT_TRUE(fs::exists(root_ + "/called"));
}

// tests of GGUF itself are elsewhere: here it gets as far as its reader.
TEST_F(ResolvePaths, AGgufFileIsAModel) {
  std::ofstream(root_ + "/tiny.gguf") << std::string("GGUF\3\0\0\0", 8);
  for (const char* typed : {"tiny.gguf", "./tiny.gguf"}) {
    const Ran ran = run(with({"chat", typed}, kAsk));
    EXPECT_EQ(ran.code, 2);
    EXPECT_THAT(ran.err, HasSubstr("tiny.gguf"));
    EXPECT_THAT(ran.err, Not(HasSubstr("want a Hugging Face directory")));
  }
}

}  // namespace
}  // namespace strata::apps
