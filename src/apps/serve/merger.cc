// SPDX-License-Identifier: Apache-2.0
#include "apps/serve/merger.h"

#include <sys/resource.h>

#include <algorithm>
#include <map>

#include "apps/export/export_model.h"
#include "model/export/write_checkpoint.h"
#include "model/weights/tensor_names.h"

namespace strata::apps {
namespace {

constexpr int64_t kShardBytes = 4LL << 30;  // a file of a tar has less than 8 GiB
constexpr int64_t kLineBytes = 256;         // of a tensor's name in a header and in the index
constexpr int kYielding = 19;               // the nicest

void yield_to_other_threads() {
  ::setpriority(PRIO_PROCESS, 0, kYielding);  // on Linux of this thread alone
}

// Whether it ran to its end.
bool write_merged(const std::string& model, const std::string& adapter, const std::string& to) {
  ExportModel exported(open_texts(model), {{.dir = adapter}}, /*threads=*/1);
  const auto errors = model::write_checkpoint(exported.backend(), exported.source(),
                                              exported.names(), to, {.shard_bytes = kShardBytes});
  if (!errors) return false;
  exported.write_small_files(to, {});
  return true;
}

// What write_merged() writes, at most: of a tied model, embedding and head apart.
int64_t most_merged_bytes(const ExportModel& model) {
  const CheckpointSource& source = *model.names().checkpoint;
  const model::ModelConfig& config = model.names().config;
  const model::NameForm& form = model::find_name_form(source, config);
  const std::string embedding = model::name_in_form(form, model::kEmbeddingName);
  const std::string head = model::name_in_form(form, model::kHeadName);
  const bool unties = config.tie_word_embeddings &&
                      (source.find(embedding) == nullptr || source.find(head) == nullptr);
  int64_t bytes = model.count_small_file_bytes();
  for (const auto& [tensor, shard] : source.layout().entries) {
    const bool doubles = unties && (tensor.name == embedding || tensor.name == head);
    bytes += (doubles ? 2 : 1) * (tensor.bytes() + 2 * std::ssize(tensor.name) + kLineBytes);
  }
  return bytes;
}

// What MergedSource holds of an adapter that has every module: those of one layer, and one of them
// three times more while it is read (in the file's order, masters and panels).
int64_t most_factor_bytes(const model::LoadedModel& names, int64_t max_rank,
                          model::ExpertRank expert_rank) {
  const model::LayerTable& layers = names.weights->layers();
  std::map<int, int64_t> of_layers;
  int64_t largest = 0;
  const auto any = [](const model::LoraTarget& target, int) { return target.is_fresh; };
  for (const model::LoraModuleSpec& spec :
       model::make_adapter_specs(layers, any, max_rank, 1.0, expert_rank)) {
    const model::LoraTarget& target = layers.targets(spec.layer)[static_cast<size_t>(spec.target)];
    const int64_t values =
        spec.rank * (target.in + target.out) * std::max<int64_t>(1, target.num_experts);
    of_layers[spec.layer] += values;
    largest = std::max(largest, values);
  }
  int64_t most = 0;
  for (const auto& [layer, values] : of_layers) most = std::max(most, values);
  return (most + 3 * largest) * dtype_bytes(DType::kF32);
}

}  // namespace

Merging make_merging(const std::vector<std::string>& directories, int64_t max_rank,
                     model::ExpertRank expert_rank) {
  Merging merging;
  for (const std::string& dir : directories) {
    const ExportModel model(open_texts(dir), {}, /*threads=*/1);
    merging.merger.bytes.push_back(most_merged_bytes(model));
    merging.bytes =
        std::max(merging.bytes, most_factor_bytes(model.names(), max_rank, expert_rank));
  }
  merging.bytes += model::kWriteBytes;
  merging.merger.write = [directories](size_t model, const std::string& adapter,
                                       const std::string& to) {
    yield_to_other_threads();
    return write_merged(directories.at(model), adapter, to);
  };
  return merging;
}

}  // namespace strata::apps
