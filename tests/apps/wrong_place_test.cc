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

using ::testing::AnyOf;
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
  refused("data.jsonl",
          "this is data, one JSON object a line; it goes behind --data; want a Hugging Face dir");
  expect_refused(with({"chat", "model", "--adapter", "data.jsonl"}, kAsk),
                 "it goes behind --data; want a LoRA adapter");
  expect_refused(with({"chat", "model", "--adapter", "model/config.json"}, kAsk),
                 "this is the configuration of a model; want a LoRA adapter");
  std::ofstream(root_ + "/m.bin") << "PK";
  refused("m.bin", "this is a file of PyTorch, which is not read");
  refused(".", "a directory without config.json; do you mean ./adapter, ./config or ./model?");
  for (const char* rate : {"sweep/lr-1e-3", "sweep/lr-1e-4"}) {
    fs::create_directories(root_ + "/sweep");
    fs::copy(root_ + "/adapter", root_ + "/" + rate, fs::copy_options::recursive);
  }
  refused("sweep", "do you mean sweep/lr-1e-3 or sweep/lr-1e-4?");
  fs::create_directories(root_ + "/empty");
  refused("empty", "a directory without config.json; want");
  fs::create_directories(root_ + "/old");
  fs::copy(model() + "/config.json", root_ + "/old/config.json");
  std::ofstream(root_ + "/old/pytorch_model.bin") << "x";
  refused("old", "its weights are files of PyTorch");
}

// Files that a person may have and give for something else. Each message says what the file is,
// what was wanted and, where there is something to do with it, what that is.
TEST_F(ResolvePaths, AFileInTheWrongPlaceIsCalledWhatItIs) {
  struct Case {
    const char* name;
    const char* what;
    const char* help;
    bool is_data = false;
  };
  constexpr const char* kMakeIt = "transformers makes tokenizer.json of it: python -c";
  constexpr const char* kMayRunCode = "which is not read, since loading one may run code";
  const Case cases[] = {
      {"adapter_config.json", "the configuration of a LoRA adapter", ""},
      {"adapter_model.safetensors", "the weights of a LoRA adapter", ""},
      {"adapter_model.bin", "the weights of a LoRA adapter as a file of PyTorch", kMayRunCode},
      {"config.json", "the configuration of a model", ""},
      {"generation_config.json", "how a model is sampled", ""},
      {"tokenizer.model", "a vocabulary of SentencePiece or tiktoken", kMakeIt},
      {"qwen.tiktoken", "a vocabulary of tiktoken", kMakeIt},
      {"tekken.json", "a vocabulary in Mistral's form", kMakeIt},
      {"vocab.json", "one of two files of a tokenizer", kMakeIt},
      {"merges.txt", "one of two files of a tokenizer", kMakeIt},
      {"tokenizer.json", "a file of a tokenizer", ""},
      {"tokenizer_config.json", "a file of a tokenizer", ""},
      {"special_tokens_map.json", "a file of a tokenizer", ""},
      {"chat_template.jinja", "a chat template", "it goes into the model's folder"},
      {"model-00001-of-00002.safetensors", "a file of weights", ""},
      {"model.safetensors.index.json", "the list of a model's files of weights", ""},
      {"pytorch_model.bin", "a file of PyTorch", kMayRunCode},
      {"model.ckpt", "a file of PyTorch", kMayRunCode},
      {"model.pkl", "a pickle of Python", kMayRunCode},
      {"model.onnx", "a model in ONNX", "save the model as safetensors"},
      {"tf_model.h5", "a model of Keras", "save the model as safetensors"},
      {"flax_model.msgpack", "a model of Flax", "save the model as safetensors"},
      {"model.gguf", "called GGUF, and does not begin as GGUF does", "did not end", true},
      {"model.tar.gz", "an archive", "unpack it and give the folder", true},
      {"model.zip", "an archive", "unpack it and give the folder", true},
      {"train.jsonl", "data, one JSON object a line", "it goes behind --data", true},
      {"train.csv", "a table of data", "it goes behind --data", true},
      {"train.parquet", "a table of data in Parquet", "it goes behind --data", true},
      {"recipe.toml", "a file of settings", "a recipe goes behind --config", true},
      {"recipe.yaml", "a file of settings", "a recipe is TOML", true},
      {"train.py", "a program in Python", "", true},
      {"notebook.ipynb", "a notebook of Python", "", true},
      {"README.md", "a text", "", true},
  };
  fs::create_directories(root_ + "/alone");
  for (const Case& c : cases) {
    const std::string path = std::string("alone/") + c.name;
    std::ofstream(root_ + "/" + path) << "what is in it does not matter";
    const std::string what = path + ": this is " + c.what;
    for (const Words& command :
         {with({"chat", path}, kAsk), with({"chat", "model", "--adapter", path}, kAsk),
          Words{"inspect", path}, Words{"train", "model", "--data", path, "--out", "more"}}) {
      if (command.front() == "train" && c.is_data) continue;  // its reader says what is wrong
      const Ran ran = run(command);
      EXPECT_EQ(ran.code, 2) << c.name;
      EXPECT_THAT(ran.err, HasSubstr(what)) << command.front();
      EXPECT_THAT(ran.err, HasSubstr(c.help)) << command.front();
      EXPECT_THAT(ran.err, AnyOf(HasSubstr("; want "), HasSubstr("; give the directory")));
    }
    if (std::string(c.name) != "tokenizer.json") {
      expect_refused({"tokenize", "--tokenizer", path, "--in", "x.jsonl", "--out", "y.jsonl"},
                     "--tokenizer: " + what);
    }
    fs::remove(root_ + "/" + path);
  }
}

TEST_F(ResolvePaths, AFolderInTheWrongPlaceIsCalledWhatItIs) {
  make_adapter("model");
  const Words train = {"train", "model", "--out", "more", "--data"};
  expect_refused(with(train, {"model"}), "--data: model: this is a model; it goes behind --model");
  expect_refused(with(train, {"adapter"}), "this is a LoRA adapter; it goes behind --adapter");
  fs::create_directories(root_ + "/meta");
  std::ofstream(root_ + "/meta/params.json") << "{}";
  expect_refused(with({"chat", "meta"}, kAsk), "with params.json: weights in their maker's own");
  fs::create_directories(root_ + "/models--Org--Tiny-1.5/snapshots");
  expect_refused(with({"chat", "models--Org--Tiny-1.5"}, kAsk),
                 "a folder of the Hugging Face hub's cache; give the model by name: Org/Tiny-1.5");
}

TEST_F(ResolvePaths, APointerOfGitLfsIsCalledSoWhateverItIsInPlaceOf) {
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 134\n";
  make_adapter("model");
  std::ofstream(root_ + "/model.gguf") << pointer;
  std::ofstream(root_ + "/lfs.jsonl") << pointer;
  expect_refused(with({"chat", "model.gguf"}, kAsk), "model.gguf: this is a pointer of git-lfs");
  expect_refused({"train", "model", "--out", "more", "--data", "lfs.jsonl"},
                 "--data: lfs.jsonl: this is a pointer of git-lfs");
  for (const char* name : {"adapter/adapter_model.safetensors", "model/model.safetensors",
                           "model/tokenizer.json", "model/config.json"}) {
    const std::string kept = content(root_ + "/" + name);
    std::ofstream(root_ + "/" + name) << pointer;
    expect_refused(with({"chat", "adapter"}, kAsk),
                   std::string(name) +
                       ": this is a pointer of git-lfs, in place of a file that was not fetched; "
                       "git lfs pull in its folder fetches it");
    std::ofstream(root_ + "/" + name) << kept;
  }
}

TEST_F(ResolvePaths, AFaultOfATemplateNamesItsFileOrKey) {
  const auto refused = [&](const std::string& what) {
    expect_refused(with({"chat", "model"}, kAsk), what);
  };
  std::ofstream(root_ + "/model/chat_template.jinja") << "{% for m in messages %}";
  refused("model/chat_template.jinja: ");
  std::ofstream(root_ + "/model/chat_template.jinja") << "{{ raise_exception('no such role') }}";
  refused("model/chat_template.jinja: ");
  refused("no such role");
  fs::remove(root_ + "/model/chat_template.jinja");
  for (const char* source : {"{% for m in messages %}", "{{ 1 + 'a' }}"}) {
    std::ofstream(root_ + "/model/tokenizer_config.json")
        << R"({"eos_token":"<|im_end|>","chat_template":")" << source << "\"}";
    refused("model/tokenizer_config.json: chat_template: ");
  }
}

TEST_F(ResolvePaths, AModelWithoutATokenizerOrTemplateSaysWhatToDo) {
  const auto refused = [&](const std::string& what) {
    expect_refused(with({"chat", "model"}, kAsk), what);
  };
  fs::remove(root_ + "/model/chat_template.jinja");
  refused("strata generate completes text without one; or put the template of its family there");
  fs::remove(root_ + "/model/tokenizer.json");
  refused("model: there is no tokenizer.json, which text needs");
  for (const char* name : {"vocab.json", "tekken.json", "tokenizer.model"}) {
    std::ofstream(root_ + "/model/" + name) << "{}";
    refused(std::string("there is no tokenizer.json; ") + name + ": this is ");
    refused("transformers makes tokenizer.json of it");
  }
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
  refused("--data", "table.parquet", "b.to_pylist()]\" 'table.parquet' > 'table.jsonl'");
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
