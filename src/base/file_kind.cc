// SPDX-License-Identifier: Apache-2.0
#include "base/file_kind.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>

namespace strata {
namespace {

using Belongs = FileKind::Belongs;

constexpr std::string_view kMakeTokenizer =
    "transformers makes tokenizer.json of it: python -c \"from transformers import AutoTokenizer "
    "as T; T.from_pretrained('DIR').save_pretrained('DIR')\"";
constexpr std::string_view kIsCode = "which is not read, since loading one may run code";
constexpr std::string_view kSaveAgain =
    "which is not read; save the model as safetensors: model.save_pretrained(DIR) of transformers";
constexpr std::string_view kUnpack = "unpack it and give the folder";
constexpr std::string_view kToData = "it goes behind --data";
constexpr std::string_view kTraining =
    "of no use here; the folder that it is in may be a model or an adapter";

struct Row {
  std::string_view pattern;  // a name; or an ending, which begins with '*'
  FileKind kind;
};

// The first row that fits counts.
constexpr Row kRows[] = {
    {"adapter_config.json", {"the configuration of a LoRA adapter", {}, Belongs::kToAdapter}},
    {"adapter_model.safetensors", {"the weights of a LoRA adapter", {}, Belongs::kToAdapter}},
    {"adapter_model.bin",
     {"the weights of a LoRA adapter as a file of PyTorch", kIsCode, Belongs::kToAdapter}},
    {"config.json", {"the configuration of a model", {}, Belongs::kToModel}},
    {"generation_config.json", {"how a model is sampled", {}, Belongs::kToModel}},
    {"tokenizer.model",
     {"a vocabulary of SentencePiece or tiktoken", kMakeTokenizer, Belongs::kToModel}},
    {"tiktoken.model", {"a file of a tokenizer", {}, Belongs::kToModel}},
    {"*.tiktoken", {"a vocabulary of tiktoken", kMakeTokenizer, Belongs::kToModel}},
    {"tekken.json", {"a vocabulary in Mistral's form", kMakeTokenizer, Belongs::kToModel}},
    {"vocab.json", {"one of two files of a tokenizer", kMakeTokenizer, Belongs::kToModel}},
    {"merges.txt", {"one of two files of a tokenizer", kMakeTokenizer, Belongs::kToModel}},
    {"tokenizer.json", {"a file of a tokenizer", {}, Belongs::kToModel}},
    {"tokenizer_config.json", {"a file of a tokenizer", {}, Belongs::kToModel}},
    {"special_tokens_map.json", {"a file of a tokenizer", {}, Belongs::kToModel}},
    {"added_tokens.json", {"a file of a tokenizer", {}, Belongs::kToModel}},
    {"*.jinja",
     {"a chat template", "it goes into the model's folder as chat_template.jinja",
      Belongs::kToModel}},
    {"optimizer.pt", {"a part of a training checkpoint of transformers", kTraining}},
    {"scheduler.pt", {"a part of a training checkpoint of transformers", kTraining}},
    {"training_args.bin", {"a part of a training checkpoint of transformers", kTraining}},
    {"trainer_state.json", {"a part of a training checkpoint of transformers", kTraining}},
    {"*.safetensors", {"a file of weights", {}, Belongs::kToModel}},
    {"*.safetensors.index.json", {"the list of a model's files of weights", {}, Belongs::kToModel}},
    {"*.bin", {"a file of PyTorch", kIsCode, Belongs::kToModel}},
    {"*.pt", {"a file of PyTorch", kIsCode, Belongs::kToModel}},
    {"*.pth", {"a file of PyTorch", kIsCode, Belongs::kToModel}},
    {"*.ckpt", {"a file of PyTorch", kIsCode, Belongs::kToModel}},
    {"*.pkl", {"a pickle of Python", kIsCode, Belongs::kToModel}},
    {"*.onnx", {"a model in ONNX", kSaveAgain, Belongs::kToModel}},
    {"*.h5", {"a model of Keras", kSaveAgain, Belongs::kToModel}},
    {"*.msgpack", {"a model of Flax", kSaveAgain, Belongs::kToModel}},
    {"*.tflite", {"a model of TensorFlow Lite", kSaveAgain, Belongs::kToModel}},
    {"*.gguf", {"called GGUF, and does not begin as GGUF does: a download that did not end?"}},
    {"*.tar.gz", {"an archive", kUnpack}},
    {"*.tgz", {"an archive", kUnpack}},
    {"*.zip", {"an archive", kUnpack}},
    {"*.7z", {"an archive", kUnpack}},
    {"*.jsonl", {"data, one JSON object a line", kToData, Belongs::kToData}},
    {"*.ndjson", {"data, one JSON object a line", kToData, Belongs::kToData}},
    {"*.jsonl.gz", {"data, one JSON object a line", kToData, Belongs::kToData}},
    {"*.jsonl.zst", {"data, one JSON object a line", kToData, Belongs::kToData}},
    {"*.csv", {"a table of data", kToData, Belongs::kToData}},
    {"*.tsv", {"a table of data", kToData, Belongs::kToData}},
    {"*.parquet", {"a table of data in Parquet", kToData, Belongs::kToData}},
    {"*.arrow", {"a table of data in Arrow", kToData, Belongs::kToData}},
    {"*.toml", {"a file of settings", "a recipe goes behind --config"}},
    {"*.yaml", {"a file of settings", "a recipe is TOML, and goes behind --config"}},
    {"*.yml", {"a file of settings", "a recipe is TOML, and goes behind --config"}},
    {"*.py", {"a program in Python"}},
    {"*.ipynb", {"a notebook of Python"}},
    {"*.md", {"a text"}},
    {"*.txt", {"a text"}},
    {"*.pdf", {"a PDF"}},
};

bool fits(std::string_view pattern, std::string_view name) {
  return pattern.starts_with('*') ? name.ends_with(pattern.substr(1)) : name == pattern;
}

constexpr std::string_view kGitLfs = "version https://git-lfs.github.com/spec/";

bool begins_as_git_lfs_pointer(const std::string& path) {
  std::array<char, kGitLfs.size()> begin = {};
  std::ifstream(path, std::ios::binary).read(begin.data(), begin.size());
  return is_git_lfs_pointer({begin.data(), begin.size()});
}

}  // namespace

bool is_git_lfs_pointer(std::string_view begin) { return begin.starts_with(kGitLfs); }

FileKind kind_of_file(const std::string& path) {
  if (begins_as_git_lfs_pointer(path)) return kGitLfsPointer;
  const std::string name = std::filesystem::path(path).filename().string();
  const auto* row = std::find_if(std::begin(kRows), std::end(kRows),
                                 [&](const Row& known) { return fits(known.pattern, name); });
  return row == std::end(kRows) ? FileKind{} : row->kind;
}

std::string describe_file_kind(const FileKind& kind) {
  if (kind.help.empty()) return fmt::format("this is {}", kind.what);
  return fmt::format("this is {}{} {}", kind.what, kind.help.starts_with("which") ? "," : ";",
                     kind.help);
}

}  // namespace strata
