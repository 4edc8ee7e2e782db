// SPDX-License-Identifier: Apache-2.0
#include "model/weights/tensor_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace strata::model {
namespace {

constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

bool has(const CheckpointSource& checkpoint, const NameForm& form, const char* name) {
  return checkpoint.find(in_form(form, name)) != nullptr;
}

// The tensor of that name in the checkpoint's form or under another name of the family, or null.
const CheckpointTensor* find_tensor(const CheckpointSource& checkpoint, const ModelConfig& config,
                                    const std::string& name) {
  const CheckpointTensor* found = checkpoint.find(in_form(form_of(checkpoint, config), name));
  if (found != nullptr || config.other_names == nullptr) return found;
  for (const std::string& other : config.other_names(name)) {
    if (found = checkpoint.find(other); found != nullptr) return found;
  }
  return nullptr;
}

bool have_equal_values(const CheckpointSource& checkpoint, const CheckpointTensor& a,
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

}  // namespace

std::string in_form(const NameForm& form, const std::string& name) {
  constexpr NameForm kCanonical;
  if (name.starts_with(kCanonical.head)) {
    return std::string(form.head) + name.substr(kCanonical.head.size());
  }
  return std::string(form.model) + name.substr(kCanonical.model.size());
}

const NameForm& form_of(const CheckpointSource& checkpoint, const ModelConfig& config) {
  const NameForm* best = &config.name_forms.front();
  int most = 0;
  for (const NameForm& form : config.name_forms) {
    const int found =
        2 * int{has(checkpoint, form, kEmbedding)} + int{has(checkpoint, form, kHead)};
    if (found > most) best = &form;
    most = std::max(most, found);
  }
  return *best;
}

void untie_stored_head(const CheckpointSource& checkpoint, ParsedConfig& parsed) {
  if (!parsed.config.tie_word_embeddings) return;
  const CheckpointTensor* embedding = find_tensor(checkpoint, parsed.config, kEmbedding);
  const CheckpointTensor* head = find_tensor(checkpoint, parsed.config, kHead);
  if (embedding == nullptr || head == nullptr) return;
  if (have_equal_values(checkpoint, *embedding, *head)) return;
  parsed.config.tie_word_embeddings = false;
  parsed.warnings.push_back(
      fmt::format("{}: config.json says tie_word_embeddings, but '{}' differs from '{}': the model "
                  "is taken as untied, as transformers takes it; set tie_word_embeddings to false",
                  checkpoint.path(), head->info.name, embedding->info.name));
}

}  // namespace strata::model
