// SPDX-License-Identifier: Apache-2.0
#include "apps/resolve_paths.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>

#include "apps/export/export_model.h"
#include "base/error.h"
#include "base/files.h"
#include "data/sources.h"
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

bool has_tokenizer_of(const server::ServeOptions& o, const std::string& model_name) {
  return std::any_of(o.tokenizers.begin(), o.tokenizers.end(),
                     [&](const std::string& given) { return given.starts_with(model_name + "="); });
}

struct ServedModel {
  std::string name, dir;
};

// Of NAME=DIR.
std::optional<ServedModel> parse_served_model(const std::string& typed) {
  const size_t sign = typed.find('=');
  if (sign == std::string::npos || sign == 0 || sign + 1 == typed.size()) return std::nullopt;
  return ServedModel{.name = typed.substr(0, sign), .dir = typed.substr(sign + 1)};
}

// NAME=DIR by its path; a name of the hub as the model's tokenizer, where none is given.
void resolve_served_model_and_add_tokenizer(server::ServeOptions& o, std::string& name_and_dir) {
  const std::optional<ServedModel> typed = parse_served_model(name_and_dir);
  if (!typed) return;
  const std::string dir = find_base_model(typed->dir);
  name_and_dir = fmt::format("{}={}", typed->name, dir);
  if (dir == typed->dir || has_tokenizer_of(o, typed->name)) return;
  o.tokenizers.push_back(fmt::format("{}={}", typed->name, typed->dir));
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
  for (const std::string& adapter : adapters)
    parts.push_back(find_or_unpack_adapter_part(adapter, archives));
  return parts;
}

}  // namespace

void resolve_paths(TrainOptions& o) {
  if (o.model.empty()) {
    resolve_model_and_adapter(o.model, o.adapter);
  } else {
    o.model = find_base_model(o.model);
    if (!o.adapter.empty()) o.adapter = find_adapter(o.adapter);
  }
  if (!o.stages.ranks.empty()) return;  // rank 0 looks for data
  data::find_sources("data", o.data);   // throws where one is not there
  data::find_sources("eval", o.eval, data::Weights::kNone);
}

void resolve_paths(DataOptions& o) {
  o.model = find_model(o.model).model;
  data::find_sources("data", o.data);
}

void resolve_paths(EvalOptions& o) {
  for (std::string& adapter : o.adapters) adapter = find_adapter(adapter);
  const ModelPath path = find_model(o.model.empty() ? o.adapters.front() : o.model);
  if (!o.model.empty() && !path.adapter.empty()) {
    o.adapters.insert(o.adapters.begin(), path.adapter);
  }
  o.model = path.model;
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
}

void resolve_paths(BenchOptions& o) {
  if (!o.model.empty()) o.model = find_base_model(o.model);
}

void resolve_paths(server::ServeOptions& o) {
  for (std::string& model : o.models) resolve_served_model_and_add_tokenizer(o, model);
}

}  // namespace strata::apps
