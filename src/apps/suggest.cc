// SPDX-License-Identifier: Apache-2.0
#include "apps/suggest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace strata::apps {
namespace {

struct Synonym {
  std::string_view typed, name;
};

// How PyTorch's trainers, vLLM, llama.cpp, ollama and others call it; of several rows the first
// whose name the command has.
constexpr Synonym kOptions[] = {
    {"activation-checkpointing", "recompute"},
    {"api-key", "keys"},
    {"base-model", "model"},
    {"batch", "batch-size"},
    {"batch", "batch-tokens"},
    {"batch-size", "batch-tokens"},
    {"bind", "listen"},
    {"checkpoint-every", "save-every"},
    {"clip-grad-norm", "clip"},
    {"context-length", "max-length"},
    {"ctx-size", "max-length"},
    {"data-dir", "data"},
    {"dataset", "data"},
    {"eval-data", "eval"},
    {"eval-file", "eval"},
    {"eval-steps", "eval-every"},
    {"grad-accum", "gradient-accumulation-steps"},
    {"grad-clip", "clip"},
    {"gradient-accumulation", "gradient-accumulation-steps"},
    {"gradient-checkpointing", "recompute"},
    {"gradient-clip", "clip"},
    {"host", "listen"},
    {"input", "in"},
    {"input", "data"},
    {"learning-rate", "lr"},
    {"lora", "adapter"},
    {"lora-alpha", "alpha"},
    {"lora-path", "adapter"},
    {"lora-r", "rank"},
    {"lora-rank", "rank"},
    {"lora-target-modules", "targets"},
    {"lr-scheduler", "lr-schedule"},
    {"lr-scheduler", "schedule"},
    {"lr-scheduler-type", "lr-schedule"},
    {"lr-scheduler-type", "schedule"},
    {"m", "model"},
    {"max-grad-norm", "clip"},
    {"max-memory", "memory"},
    {"max-new-tokens", "max-tokens"},
    {"max-seq-len", "max-length"},
    {"max-seq-length", "max-length"},
    {"max-steps", "steps"},
    {"micro-batch-size", "micro-tokens"},
    {"model-name", "model"},
    {"model-name-or-path", "model"},
    {"model-path", "model"},
    {"n-predict", "max-tokens"},
    {"nthreads", "threads"},
    {"num-epochs", "epochs"},
    {"num-predict", "max-tokens"},
    {"num-steps", "steps"},
    {"num-threads", "threads"},
    {"num-train-epochs", "epochs"},
    {"o", "out"},
    {"output", "out"},
    {"output-dir", "out"},
    {"p", "prompt"},
    {"peft", "adapter"},
    {"per-device-train-batch-size", "batch-size"},
    {"per-device-train-batch-size", "batch-tokens"},
    {"precision", "dtype"},
    {"r", "rank"},
    {"ram", "memory"},
    {"random-seed", "seed"},
    {"save-steps", "save-every"},
    {"seq-len", "max-length"},
    {"seq-length", "max-length"},
    {"served-model-name", "alias"},
    {"system-prompt", "system"},
    {"t", "threads"},
    {"target-modules", "targets"},
    {"temp", "temperature"},
    {"train-data", "data"},
    {"train-file", "data"},
    {"train-on-inputs", "train-on"},
    {"val-data", "eval"},
    {"validation-data", "eval"},
    {"warmup", "warmup-steps"},
    {"wd", "weight-decay"},
};
constexpr Synonym kCommands[] = {
    {"ask", "chat"},          {"benchmark", "bench"},    {"complete", "generate"},
    {"create", "init"},       {"describe", "inspect"},   {"download", "pull"},
    {"estimate", "plan"},     {"export", "convert"},     {"fetch", "pull"},
    {"fine-tune", "train"},   {"finetune", "train"},     {"get", "pull"},
    {"infer", "generate"},    {"inference", "generate"}, {"info", "inspect"},
    {"key", "keygen"},        {"lora", "train"},         {"new", "init"},
    {"predict", "generate"},  {"quantise", "convert"},   {"quantize", "convert"},
    {"run", "chat"},          {"server", "serve"},       {"sft", "train"},
    {"show", "inspect"},      {"start", "serve"},        {"talk", "chat"},
    {"tokenise", "tokenize"}, {"tune", "train"},         {"verify", "check"},
};

constexpr size_t kMostNames = 3;
constexpr size_t kMostTyped = 64;  // longer ones are close to nothing

std::string normalized_name(std::string_view typed) {
  std::string out(typed.substr(0, kMostTyped));
  for (char& c : out)
    c = c == '_' ? '-' : c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

bool is_among(std::string_view name, std::span<const std::string> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// The closest first: of few letters away, or begun with the word.
std::vector<std::string> names_spelled_like(const std::string& word,
                                            std::span<const std::string> names) {
  const size_t most = word.size() <= 5 ? 1 : 2;
  std::vector<std::pair<size_t, std::string>> found;
  for (const std::string& name : names) {
    const size_t distance = edit_distance(word, name);
    const bool is_begun = word.size() >= 3 && name.starts_with(word);
    if ((distance <= most && distance < name.size()) || is_begun) {
      found.emplace_back(is_begun ? 1 : distance, name);
    }
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> out;
  for (size_t i = 0; i < std::min(found.size(), kMostNames); ++i) out.push_back(found[i].second);
  return out;
}

std::vector<std::string> similar_names(std::string_view typed, std::span<const std::string> names,
                                       std::span<const Synonym> synonyms) {
  const std::string word = normalized_name(typed);
  if (is_among(word, names)) return {word};
  for (const Synonym& synonym : synonyms) {
    if (synonym.typed == word && is_among(synonym.name, names)) return {std::string(synonym.name)};
  }
  return names_spelled_like(word, names);
}

}  // namespace

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> cost(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        cost[i][j] = i + j;
        continue;
      }
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1,
                             cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
      }
    }
  }
  return cost[a.size()][b.size()];
}

std::vector<std::string> similar_options(std::string_view typed,
                                         std::span<const std::string> names) {
  return similar_names(typed, names, kOptions);
}

std::vector<std::string> similar_commands(std::string_view typed,
                                          std::span<const std::string> names) {
  return similar_names(typed, names, kCommands);
}

std::string did_you_mean(std::span<const std::string> names, std::string_view before) {
  std::string list;
  for (size_t i = 0; i < names.size(); ++i) {
    list += fmt::format("{}{}{}",
                        i == 0                  ? ""
                        : i + 1 == names.size() ? " or "
                                                : ", ",
                        before, names[i]);
  }
  return names.empty() ? "" : fmt::format("; did you mean {}?", list);
}

}  // namespace strata::apps
