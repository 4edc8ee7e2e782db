// SPDX-License-Identifier: Apache-2.0
#include "model/weights/tensor_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <vector>

#include "model/families/family.h"

namespace strata::model {
namespace {

bool has(const CheckpointSource& checkpoint, const NameForm& form, const char* name) {
  return checkpoint.find(name_in_form(form, name)) != nullptr;
}

// The tensor of that name in the checkpoint's form or under another name of the family, or null.
const CheckpointTensor* find_tensor(const CheckpointSource& checkpoint, const ModelConfig& config,
                                    const std::string& name) {
  const CheckpointTensor* found =
      checkpoint.find(name_in_form(find_name_form(checkpoint, config), name));
  if (found != nullptr || config.names_in_files == nullptr) return found;
  for (const std::string& other : config.names_in_files(name)) {
    if (found = checkpoint.find(other); found != nullptr) return found;
  }
  return nullptr;
}

bool tensors_equal(const CheckpointSource& checkpoint, const CheckpointTensor& a,
                   const CheckpointTensor& b) {
  if (!a.info.readable || !b.info.readable || a.info.dims != b.info.dims) return false;
  constexpr int64_t kElements = 4 << 20;
  const int64_t count = a.info.shape.num_elements();
  std::vector<float> values, others;
  for (int64_t first = 0; first < count; first += kElements) {
    values.resize(static_cast<size_t>(std::min(kElements, count - first)));
    others.resize(values.size());
    checkpoint.read_f32(a, first, std::ssize(values), values.data());
    checkpoint.read_f32(b, first, std::ssize(others), others.data());
    if (values != others) return false;
  }
  return true;
}

// Whether the last components of a name, whole ones and not all of them, are the suffix.
bool has_suffix(std::string_view name, std::string_view suffix) {
  return name.size() > suffix.size() && name.ends_with(suffix) &&
         name[name.size() - suffix.size() - 1] == '.';
}

// "model.layers.N." with a layer of multi-token prediction.
bool in_mtp_layer(const ModelConfig& config, std::string_view name) {
  constexpr std::string_view kPrefix = "model.layers.";
  if (!name.starts_with(kPrefix)) return false;
  name.remove_prefix(kPrefix.size());
  int64_t layer = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  return error == std::errc() && end != name.data() + name.size() && *end == '.' &&
         layer >= config.num_layers() && layer < config.num_layers() + config.num_mtp_layers;
}

}  // namespace

std::string name_in_form(const NameForm& form, const std::string& name) {
  constexpr NameForm kCanonical;
  if (name.starts_with(kCanonical.head)) {
    return std::string(form.head) + name.substr(kCanonical.head.size());
  }
  if (!name.starts_with(kCanonical.model)) return name;
  return std::string(form.model) + name.substr(kCanonical.model.size());
}

const NameForm& find_name_form(const CheckpointSource& checkpoint, const ModelConfig& config) {
  const NameForm* best = &config.name_forms.front();
  int most = 0;
  for (const NameForm& form : config.name_forms) {
    const int found =
        2 * int{has(checkpoint, form, kEmbeddingName)} + int{has(checkpoint, form, kHeadName)};
    if (found > most) best = &form;
    most = std::max(most, found);
  }
  return *best;
}

bool is_unused_tensor(const ModelConfig& config, std::string_view name) {
  for (const std::string_view suffix : ignored_suffixes()) {
    if (has_suffix(name, suffix)) return true;
  }
  if (in_mtp_layer(config, name)) return true;
  // A tied model may carry its head again; the embedding is the one that counts.
  return config.tie_word_embeddings && (name == kHeadName || name.ends_with(".lm_head.weight"));
}

bool is_of_another_modality(const ModelConfig& config, std::string_view name) {
  if (name.starts_with("model.")) name.remove_prefix(std::string_view("model.").size());
  // The layer of multi-token prediction is whole or an error where it takes part.
  return std::any_of(config.ignored_prefixes.begin(), config.ignored_prefixes.end(),
                     [&](std::string_view prefix) {
                       return name.starts_with(prefix) && !(config.use_mtp && prefix == "mtp.");
                     });
}

void verify_weight_tying(const CheckpointSource& checkpoint, ParsedConfig& parsed) {
  if (!parsed.config.tie_word_embeddings) return;
  const CheckpointTensor* embedding = find_tensor(checkpoint, parsed.config, kEmbeddingName);
  const CheckpointTensor* head = find_tensor(checkpoint, parsed.config, kHeadName);
  if (embedding == nullptr || head == nullptr) return;
  if (tensors_equal(checkpoint, *embedding, *head)) return;
  parsed.config.tie_word_embeddings = false;
  parsed.warnings.push_back(
      fmt::format("{}: config.json says tie_word_embeddings, but '{}' differs from '{}': the model "
                  "is taken as untied, as transformers takes it; set tie_word_embeddings to false",
                  checkpoint.path(), head->info.name, embedding->info.name));
}

}  // namespace strata::model
