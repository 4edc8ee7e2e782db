// SPDX-License-Identifier: Apache-2.0
// Files and folders given for something else: each is called what it is, with what was wanted and
// what helps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/apps/resolve_paths_fixture.h"

namespace strata::apps {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(ResolvePaths, WhatIsNoModelIsCalledWhatItIs) {
  make_adapter("model");
  const auto refused = [&](const std::string& typed, const std::string& what) {
    expect_refused(with({"chat", typed}, kAsk), what);
    expect_refused({"train", "--model", typed, "--data", "data.jsonl", "--out", "more"}, what);
  };
  refused("nowhere", "--model: nowhere: no such directory; want a Hugging Face directory");
  refused("Qwen/Qwen3-0.6B", "to get it: hf download Qwen/Qwen3-0.6B (or strata pull");
  refused("model/model.safetensors", "this is a file of weights; give the directory");
  refused("model/config.json", "this is the configuration of a model; give the directory");
  refused("model/tokenizer.json", "this is a file of a tokenizer; give the directory");
  refused("adapter/adapter_model.safetensors", "this is the weights of a LoRA adapter; give");
  refused("adapter/adapter_config.json", "this is the configuration of a LoRA adapter; give");
  refused("data.jsonl", "this is a file; want a Hugging Face directory");
  expect_refused(with({"chat", "model", "--adapter", "data.jsonl"}, kAsk),
                 "--adapter: data.jsonl: this is a file; want a LoRA adapter");
  expect_refused(with({"chat", "model", "--adapter", "model/config.json"}, kAsk),
                 "this is the configuration of a model; want a LoRA adapter");
  std::ofstream(root_ + "/m.bin") << "PK";
  refused("m.bin", "this is a file of PyTorch, which is not read");
  refused(".", "a directory without config.json; do you mean ./adapter?");
  fs::create_directories(root_ + "/empty");
  refused("empty", "a directory without config.json; want");
  fs::create_directories(root_ + "/old");
  fs::copy(model() + "/config.json", root_ + "/old/config.json");
  std::ofstream(root_ + "/old/pytorch_model.bin") << "x";
  refused("old", "its weights are files of PyTorch");
}

TEST_F(ResolvePaths, DataThatIsNoDataIsCalledSo) {
  const auto refused = [&](const std::string& option, const std::string& path,
                           const std::string& what) {
    std::vector<std::string> line = {"train", "model", "--out", "more", option, path};
    if (option != "--data") line.insert(line.end(), {"--data", "data.jsonl"});
    expect_refused(line, what);
  };
  refused("--data", "nofile.jsonl",
          "--data: nofile.jsonl: no such file; want JSONL, JSON or CSV, a folder");
  refused("--eval", "nofile.jsonl",
          "--eval: nofile.jsonl: no such file; want JSONL, JSON or CSV, a folder");
  fs::create_directories(root_ + "/empty");
  refused("--data", "empty", "--data: empty: no files of data in this folder");
  std::ofstream(root_ + "/README.md") << "# A project\n\nIt does this.\n";
  refused("--data", "README.md", "is this JSONL? want a JSON object a line");
  std::ofstream(root_ + "/table.parquet") << "PAR1 and so on";
  refused("--data", "table.parquet", "pandas.read_parquet('table.parquet').to_json('table.jsonl'");
  std::ofstream(root_ + "/d.gz") << "\x1f\x8b\x08 and so on";
  refused("--data", "d.gz", "d.gz: gzip: not whole: ");
  // One bad line among good ones is what is wrong, not the file.
  std::ofstream(root_ + "/bad.jsonl") << content(root_ + "/data.jsonl") << "{\"text\": 1}\n";
  const Ran ran = run({"train", "model", "--out", "more", "--data", "bad.jsonl"});
  EXPECT_THAT(ran.err, HasSubstr("bad.jsonl:41: "));
  EXPECT_THAT(ran.err, Not(HasSubstr("is this JSONL")));
}

}  // namespace
}  // namespace strata::apps
