// SPDX-License-Identifier: Apache-2.0
#include "apps/resolve_paths.h"

#include <fmt/format.h>

#include <filesystem>
#include <string>

#include "apps/export/export_model.h"
#include "base/error.h"
#include "base/file_kind.h"
#include "base/files.h"
#include "checkpoint/gguf/gguf_model.h"
#include "data/sources.h"
#include "setup/dataset_path.h"
#include "setup/model_path.h"

namespace strata::apps {
namespace {

void check_names_one_adapter(const ModelPath& model, const std::string& adapter) {
  if (adapter.empty() || model.adapter.empty()) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--adapter: {}: --model is a LoRA adapter itself ({}); give its base "
                          "({}) and one of them",
                          adapter, model.adapter, model.model));
}

// A model and what it is sampled with; the adapter alone stands for both.
void resolve_model_and_adapter(std::string& model, std::string& adapter) {
  if (model.empty()) {
    const ModelPath path = find_model(find_adapter(adapter));
    model = path.model;
    adapter = path.adapter.empty() ? adapter : path.adapter;
    return;
  }
  const ModelPath path = find_model(model);
  check_names_one_adapter(path, adapter);
  model = path.model;
  adapter = adapter.empty() ? path.adapter : find_adapter(adapter);
}

// The adapters that are to be added to a model, which may be one itself: then `model` becomes its
// base.
std::vector<model::AdapterPart> resolve_model_and_parts(std::string& model,
                                                        const std::vector<std::string>& adapters,
                                                        Archives& archives) {
  const ModelPath path = find_model(model);
  std::vector<model::AdapterPart> parts;
  model = path.model;
  if (!path.adapter.empty()) parts.push_back({.dir = path.adapter});
  for (const std::string& adapter : adapters) parts.push_back(open_adapter_part(adapter, archives));
  return parts;
}

// Where a tokenizer.json is wanted; one may have any name.
void refuse_other_file(const std::string& typed) {
  const std::filesystem::path path = typed;
  if (std::filesystem::is_directory(path) || is_gguf(typed) || path.filename() == "tokenizer.json")
    return;
  const FileKind kind = kind_of_file(typed);
  if (kind.what == FileKind().what) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--tokenizer: {}: {}; want a model directory, a GGUF file or a "
                          "tokenizer.json",
                          typed, describe_file_kind(kind)));
}

}  // namespace

void resolve_paths(TrainOptions& o) {
  resolve_model_and_adapter(o.model, o.adapter);
  if (!o.stages.ranks.empty()) return;  // rank 0 looks for data
  o.data = resolve_data_names("data", o.data);
  o.eval = resolve_data_names("eval", o.eval);
  data::find_sources("data", o.data);  // throws where one is not there
  data::find_sources("eval", o.eval, data::Weights::kNone);
}

void resolve_paths(DataOptions& o) {
  find_model(o.model);  // an adapter stays: its template is used
  o.data = resolve_data_names("data", o.data);
  data::find_sources("data", o.data);
}

void resolve_paths(EvalOptions& o) {
  for (std::string& adapter : o.adapters) adapter = find_adapter(adapter);
  const ModelPath path = find_model(o.model.empty() ? o.adapters.front() : o.model);
  if (!o.model.empty() && !path.adapter.empty()) {
    o.adapters.insert(o.adapters.begin(), path.adapter);
  }
  o.model = path.model;
  o.data = resolve_data_names("data", o.data);
  data::find_sources("data", o.data, data::Weights::kNone);
}

void resolve_paths(PlanOptions& o) {
  if (!o.model.empty()) o.model = find_config_path("model", o.model);
}

void resolve_paths(GenerateOptions& o) {
  resolve_model_and_adapter(o.generation.model, o.generation.adapter);
}

void resolve_paths(ChatOptions& o) {
  resolve_model_and_adapter(o.generation.model, o.generation.adapter);
}

void resolve_paths(ProbeOptions& o) {
  const ModelPath path = find_model(o.model);
  o.model = path.model;
  for (std::string& adapter : o.adapters) adapter = find_adapter(adapter);
  if (!path.adapter.empty()) o.adapters.insert(o.adapters.begin(), path.adapter);
}

void resolve_paths(InspectOptions& o) { o.model = find_directory("model", o.model); }

void resolve_paths(MergeOptions& o) {
  o.parts = resolve_model_and_parts(o.model, o.adapters, o.archives);
  if (o.parts.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "--adapter: is missing; name what is to be merged");
  }
}

void resolve_paths(ConvertOptions& o) {
  o.parts = resolve_model_and_parts(o.model, o.adapters, o.archives);
}

void resolve_paths(InitOptions& o) { o.config = find_config_path("config", o.config); }

void resolve_paths(TokenizeOptions& o) {
  if (!file_exists(o.tokenizer)) o.tokenizer = find_directory("tokenizer", o.tokenizer);
  refuse_other_file(o.tokenizer);
  // An adapter that came without one is spoken to by its base's.
  if (is_adapter_directory(o.tokenizer) && !file_exists(o.tokenizer + "/tokenizer.json"))
    o.tokenizer = find_model(o.tokenizer).model;
}

void resolve_paths(BenchOptions& o) {
  if (!o.model.empty()) o.model = find_model(o.model).model;
}

}  // namespace strata::apps
