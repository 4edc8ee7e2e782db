// SPDX-License-Identifier: Apache-2.0
#include "apps/inspect_adapter.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <boost/json.hpp>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "checkpoint/peft.h"
#include "checkpoint/source.h"
#include "model/adapter/base_numbers.h"
#include "model/adapter/base_size.h"
#include "model/adapter/io.h"
#include "model/weights/load.h"
#include "ops/cpu/cpu_backend.h"
#include "report/format.h"
#include "report/table.h"
#include "setup/adapter_texts.h"
#include "setup/model_path.h"
#include "setup/weights_text.h"

namespace strata::apps {
namespace {

struct Findings {
  std::string base_name;  // as the adapter has it
  std::string base;       // its directory; empty where it is not there
  std::optional<PeftAdapter> adapter;
  AdapterTexts texts;
  std::vector<std::string> notes;
  std::vector<std::string> faults;
};

std::string own_text(OwnText own, const std::string& more) {
  switch (own) {
    case OwnText::kNone:
      return "none of its own";
    case OwnText::kSame:
      return "as its base's";
    case OwnText::kAlone:
      return "its own";
    case OwnText::kOther:
      return "its own, in place of its base's" + more;
  }
  CHECK(false);
}

std::string tokenizer_text(const AdapterTexts& texts) {
  return own_text(texts.tokenizer,
                  fmt::format(", with {} more added tokens", texts.num_more_tokens));
}

void note_other_base_weights(const InspectOptions& options, Findings& f) {
  const auto weights = find_weights(f.base);
  if (!weights) return;
  const std::string warning = model::base_mismatch_warning(*f.adapter, options.model, *weights);
  if (!warning.empty()) f.notes.push_back(warning);
}

// Modules that the base does not have, or not in these shapes.
void compare_modules_with_base(const InspectOptions& options, Findings& f) {
  CpuBackend backend(CpuPath::kReference, 1);
  model::LoadedModel base;
  base.dir = f.base;
  base.config = model::load_config(f.base, options.strict_config).config;
  base.config.use_mtp = model::adapter_dir_has_mtp(base.config, options.model);
  // Pages of the zeroed weights are never touched, so this costs addresses, not memory.
  base.weights = std::make_unique<model::ModelWeights>(backend, base.config, DType::kBF16);
  for (std::string& fault : model::find_adapter_faults(base, *f.adapter))
    f.faults.push_back(std::move(fault));
}

// Whether the base has all modules, in these shapes; its weights are not read.
void compare_with_base(const InspectOptions& options, Findings& f) {
  if (f.base.empty()) {
    f.notes.emplace_back("the base is not here, so modules were not compared with it");
    return;
  }
  if (!f.adapter->base_copies().empty()) {
    f.notes.push_back(fmt::format(
        "a copy of the base's '{}' is in it; modules and copies are compared when it is loaded",
        f.adapter->base_copies()[0].base_name));
    return;
  }
  note_other_base_weights(options, f);
  compare_modules_with_base(options, f);
}

std::string last_name(const std::string& path) { return path.substr(path.rfind('.') + 1); }

// How many modules have which last name.
std::map<std::string, int64_t> count_targets(const PeftAdapter& adapter) {
  std::map<std::string, int64_t> counts;
  for (const PeftModule& module : adapter.modules()) ++counts[last_name(module.module_path)];
  return counts;
}

template <typename T>
std::string range_text(const std::set<T>& values) {
  if (values.empty()) return "none";
  if (values.size() == 1) return fmt::format("{}", *values.begin());
  return fmt::format("{} to {}", *values.begin(), *values.rbegin());
}

struct Sizes {
  std::set<int64_t> ranks;
  std::set<double> alphas, scalings;
  std::map<std::string, int64_t> tensors_by_dtype;
  int64_t num_parameters = 0, num_bytes = 0;
};

Sizes sizes_of(const PeftAdapter& adapter) {
  Sizes sizes;
  for (const PeftModule& module : adapter.modules()) {
    sizes.ranks.insert(module.rank);
    sizes.alphas.insert(module.alpha);
    sizes.scalings.insert(module.scaling);
    for (const TensorInfo* tensor : {&module.a, &module.b}) {
      sizes.num_parameters += tensor->shape.num_elements();
      sizes.num_bytes += tensor->num_bytes();
      ++sizes.tensors_by_dtype[tensor->dtype_name];
    }
  }
  return sizes;
}

std::string counts_text(const std::map<std::string, int64_t>& counts) {
  std::vector<std::string> parts;
  for (const auto& [name, count] : counts) parts.push_back(fmt::format("{} {}", count, name));
  return fmt::format("{}", fmt::join(parts, ", "));
}

void add_size_rows(const PeftAdapter& adapter, report::Table& table) {
  const Sizes sizes = sizes_of(adapter);
  table.add_row({"adapts", counts_text(count_targets(adapter))});
  table.add_row({"rank", range_text(sizes.ranks)});
  table.add_row({"alpha", fmt::format("{}; scaling {}", range_text(sizes.alphas),
                                      range_text(sizes.scalings))});
  table.add_row({"parameters", report::format_count(static_cast<double>(sizes.num_parameters))});
  table.add_row({"tensors", fmt::format("{}; {}", counts_text(sizes.tensors_by_dtype),
                                        report::format_bytes(sizes.num_bytes))});
}

std::string base_text(const Findings& f) {
  if (f.base_name.empty()) return "not named";
  if (f.base.empty()) return fmt::format("{} (not here)", f.base_name);
  return f.base == f.base_name ? f.base : fmt::format("{} (here: {})", f.base_name, f.base);
}

std::string tensors_text(const PeftAdapter& adapter) {
  report::Table table({{"tensor"}, {"dtype"}, {"shape", report::Align::kRight}});
  for (const PeftModule& module : adapter.modules()) {
    for (const TensorInfo* tensor : {&module.a, &module.b}) {
      table.add_row({tensor->name, tensor->dtype_name, tensor->shape_text()});
    }
  }
  return table.text();
}

void print_table(const InspectOptions& options, const Findings& f) {
  report::Table table({{""}, {""}});
  table.add_row({"directory", options.model});
  table.add_row({"kind", "LoRA adapter (PEFT)"});
  table.add_row({"base", base_text(f)});
  if (f.adapter) {
    const auto numbers = model::saved_base_fingerprint(*f.adapter);
    if (numbers) table.add_row({"trained over", fmt::format("matrices in {}", numbers->types)});
    if (const auto rope = model::saved_rope_table(*f.adapter))
      table.add_row({"RoPE", fmt::format("{} factors", *rope)});
    add_size_rows(*f.adapter, table);
  }
  table.add_row({"chat template", own_text(f.texts.chat_template, "")});
  table.add_row({"tokenizer", tokenizer_text(f.texts)});
  for (const std::string& note : f.notes) table.add_row({"note", note});
  fmt::print("{}", table.text());
  if (options.tensors && f.adapter) fmt::print("\n{}", tensors_text(*f.adapter));
  for (const std::string& fault : f.faults) fmt::print("FAULT {}\n", fault);
}

boost::json::array tensors_json(const PeftAdapter& adapter) {
  boost::json::array tensors;
  for (const PeftModule& module : adapter.modules()) {
    for (const TensorInfo* tensor : {&module.a, &module.b}) {
      tensors.push_back(boost::json::object{
          {"name", tensor->name}, {"dtype", tensor->dtype_name}, {"shape", tensor->shape_text()}});
    }
  }
  return tensors;
}

void add_adapter_members(const PeftAdapter& adapter, boost::json::object& out) {
  const Sizes sizes = sizes_of(adapter);
  const auto numbers = model::saved_base_fingerprint(adapter);
  if (numbers) out["base_types"] = numbers->types;
  if (const auto rope = model::saved_rope_table(adapter)) out["rope_factors"] = *rope;
  out["targets"] = boost::json::value_from(count_targets(adapter));
  out["ranks"] = boost::json::value_from(sizes.ranks);
  out["alphas"] = boost::json::value_from(sizes.alphas);
  out["scalings"] = boost::json::value_from(sizes.scalings);
  out["num_parameters"] = sizes.num_parameters;
  out["bytes"] = sizes.num_bytes;
  out["tensors_by_dtype"] = boost::json::value_from(sizes.tensors_by_dtype);
}

void print_json(const InspectOptions& options, const Findings& f) {
  boost::json::object out;
  out["directory"] = options.model;
  out["kind"] = "adapter";
  out["base"] = f.base_name;
  out["base_directory"] = f.base;
  out["chat_template"] = own_text(f.texts.chat_template, "");
  out["tokenizer"] = tokenizer_text(f.texts);
  if (f.adapter) add_adapter_members(*f.adapter, out);
  if (f.adapter && options.tensors) out["tensors"] = tensors_json(*f.adapter);
  out["notes"] = boost::json::value_from(f.notes);
  out["faults"] = boost::json::value_from(f.faults);
  fmt::print("{}\n", boost::json::serialize(out));
}

}  // namespace

int inspect_adapter(const InspectOptions& options) {
  Findings findings;
  collect_fault(findings.faults,
                [&] { findings.base_name = read_base_name_of_adapter(options.model); });
  collect_fault(findings.faults, [&] { findings.base = find_base_of_adapter(options.model); });
  collect_fault(findings.faults, [&] { findings.adapter.emplace(options.model); });
  collect_fault(findings.faults, [&] {
    findings.texts = findings.base.empty()
                         ? read_adapter_texts_alone(options.model)
                         : read_adapter_texts(open_texts(findings.base), options.model);
  });
  if (findings.adapter)
    collect_fault(findings.faults, [&] { compare_with_base(options, findings); });
  options.json ? print_json(options, findings) : print_table(options, findings);
  return findings.faults.empty() ? 0 : 2;
}

}  // namespace strata::apps
