// SPDX-License-Identifier: Apache-2.0
#include "apps/export/export_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/say.h"
#include "checkpoint/tar.h"
#include "model/weights/load.h"
#include "model/weights/no_layers.h"
#include "report/table.h"
#include "setup/adapter_texts.h"
#include "setup/backend.h"
#include "setup/model_files.h"
#include "setup/model_path.h"
#include "text/json_reader.h"

namespace strata::apps {
namespace {

constexpr int64_t kMaxConfigBytes = 16 << 20;
constexpr std::string_view kConfig = "config.json";
// Files of a directory that not every model has (setup/model_files.h names the others).
constexpr std::string_view kOtherFiles[] = {"tokenizer.model", "preprocessor_config.json",
                                            "processor_config.json", "chat_template.json"};

std::string tensor_error_json(const model::TensorError& e) {
  return fmt::format(
      "{{\"name\": {}, \"from\": {}, \"to\": {}, \"values\": {}, \"largest\": {}, \"rms\": {}, "
      "\"largest_error\": {}, \"rms_error\": {}, \"relative_error\": {}}}",
      text::json_quote(e.name), text::json_quote(e.from), text::json_quote(e.to), e.count,
      text::json_optional_number(e.largest), text::json_optional_number(e.rms()),
      text::json_optional_number(e.largest_error), text::json_optional_number(e.rms_error()),
      text::json_optional_number(e.relative()));
}

void write_rounding_report(const std::vector<model::TensorError>& errors, const std::string& path) {
  std::string out = "{\"tensors\": [";
  for (const model::TensorError& error : errors) {
    out += (out.back() == '[' ? "\n " : ",\n ") + tensor_error_json(error);
  }
  write_file_atomic(path, out + "\n]}\n");
}

std::string rounding_table(std::span<const model::TensorError* const> errors) {
  using report::Align;
  report::Table table({{"rounding of"},
                       {"to"},
                       {"largest value", Align::kRight},
                       {"largest error", Align::kRight},
                       {"rms error", Align::kRight},
                       {"of rms", Align::kRight}});
  for (const model::TensorError* e : errors) {
    table.add_row({e->name, e->to, fmt::format("{:.4g}", e->largest),
                   fmt::format("{:.3g}", e->largest_error), fmt::format("{:.3g}", e->rms_error()),
                   fmt::format("{:.3g} %", 100.0 * e->relative())});
  }
  return table.text();
}

double parse_part_weight(const std::string& typed, const std::string& number) {
  double weight = 1.0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), weight);
  if (error != std::errc() || end != number.data() + number.size() || !std::isfinite(weight)) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("--adapter: {}: there is no such directory, and '{}' is no weight; want "
                    "DIR or DIR:WEIGHT, as in adapter:0.5",
                    typed, number));
  }
  return weight;
}

std::string open_adapter(const std::string& typed, Archives& archives) {
  if (!is_tar_file(typed)) return find_adapter(typed);
  archives.push_back(std::make_shared<const AdapterArchive>(typed));
  return archives.back()->dir();
}

// The key that a config has it under.
std::string dtype_key(const std::string& config) {
  const bool is_old = config.find("\"torch_dtype\"") != std::string::npos;
  return is_old ? "torch_dtype" : "dtype";
}

std::string value_to_write(const std::string& key, std::string value,
                           const std::vector<std::pair<std::string, std::string>>& others) {
  for (const auto& [name, other] : others) {
    if (name == key) value = other;
  }
  return value;
}

// The largest change first.
std::vector<const model::TensorError*> changed_by_rounding(
    const std::vector<model::TensorError>& errors) {
  std::vector<const model::TensorError*> changed;
  for (const model::TensorError& error : errors) {
    if (error.largest_error > 0.0) changed.push_back(&error);
  }
  std::stable_sort(changed.begin(), changed.end(),
                   [](const auto* a, const auto* b) { return a->relative() > b->relative(); });
  return changed;
}

}  // namespace

model::AdapterPart open_adapter_part(const std::string& named, Archives& archives) {
  const std::string typed = without_served_name(named);
  const size_t colon = typed.rfind(':');
  if (colon == std::string::npos || colon == 0 || file_exists(typed)) {
    return {.dir = open_adapter(typed, archives)};
  }
  const double weight = parse_part_weight(typed, typed.substr(colon + 1));
  return {.dir = open_adapter(typed.substr(0, colon), archives), .weight = weight};
}

std::string find_adapter_of_texts(const ModelTexts& base,
                                  const std::vector<model::AdapterPart>& parts) {
  const auto own = std::ranges::find_if(parts, [&](const model::AdapterPart& part) {
    return read_adapter_texts(base, part.dir).has_own();
  });
  if (own == parts.end()) return {};
  if (parts.size() == 1) return own->dir;
  log(LogLevel::kWarning,
      fmt::format("{} has its own chat template or tokenizer; of several adapters the base's are "
                  "kept",
                  own->dir));
  return {};
}

ExportModel::ExportModel(const ModelTexts& texts, const std::vector<model::AdapterPart>& adapters,
                         int threads, const std::string& own_texts)
    : texts_(texts_with_adapter(texts, own_texts)),
      backend_(make_backend(threads)),
      names_(model::load_model(*backend_, texts.where(),
                               model::read_config(texts, /*strict=*/false),
                               {.compute_dtype = DType::kF32,
                                .mtp = model::UseMtp::kIfThere,
                                .part = model::kNoLayers})) {
  for (const std::string& warning : names_.warnings) log(LogLevel::kWarning, warning);
  if (adapters.empty()) return;
  merged_ = std::make_unique<model::MergedSource>(*backend_, names_, adapters);
}

const CheckpointSource& ExportModel::source() const {
  if (merged_ != nullptr) return *merged_;
  return *names_.checkpoint;
}

std::string ExportModel::read_updated_config(std::string_view dtype) const {
  const std::string where = texts_.where(kConfig);
  std::string text = without_quantization(texts_.read(kConfig, kMaxConfigBytes), where);
  std::vector<std::pair<std::string, std::string>> members;
  if (merged_ != nullptr && merged_->unties()) members.emplace_back("tie_word_embeddings", "false");
  if (!dtype.empty()) members.emplace_back(dtype_key(text), text::json_quote(dtype));
  return members.empty() ? text : with_json_members(text, where, members);
}

int64_t ExportModel::count_small_file_bytes() const {
  int64_t bytes = count_model_file_bytes(texts_);
  for (const std::string_view name : kOtherFiles) {
    const std::string file = fmt::format("{}/{}", names_.dir, name);
    if (file_exists(file)) bytes += static_cast<int64_t>(std::filesystem::file_size(file));
  }
  return bytes;
}

void ExportModel::write_small_files(const std::string& dir, std::string_view dtype) const {
  copy_model_files_as_unquantized(texts_, dir);
  write_file_atomic(fmt::format("{}/{}", dir, kConfig), read_updated_config(dtype));
  for (const std::string_view name : kOtherFiles) {
    const std::string from = fmt::format("{}/{}", names_.dir, name);
    if (file_exists(from)) {
      std::filesystem::copy_file(from, fmt::format("{}/{}", dir, name));
    }
  }
}

void check_no_overwrite(const std::string& option, const std::string& path) {
  std::error_code fault;
  if (!std::filesystem::exists(path, fault)) return;
  if (std::filesystem::is_directory(path, fault) && std::filesystem::is_empty(path, fault)) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--{}: {} exists; choose another name", option, path));
}

void make_parent_folder(const std::string& option, const std::string& path) {
  std::error_code fault;
  if (path.ends_with('/') || std::filesystem::is_directory(path, fault)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--{}: {} is a folder; give the name of a file", option, path));
  }
  const std::string folder = std::filesystem::path(path).parent_path().string();
  if (!folder.empty()) make_folders(folder);
}

std::string with_json_members(const std::string& text, const std::string& where,
                              const std::vector<std::pair<std::string, std::string>>& members) {
  text::JsonReader json(text, where);
  std::string out = "{";
  std::vector<std::string> seen;
  json.begin_object();
  for (std::string key; json.next_key(key);) {
    std::string value = value_to_write(key, json.read_compact_json(), members);
    if (key == "text_config") value = with_json_members(value, where + ": text_config", members);
    text::append_json_member(out, "  ", key, value);
    seen.push_back(key);
  }
  for (const auto& [name, value] : members) {
    if (std::find(seen.begin(), seen.end(), name) != seen.end()) continue;
    text::append_json_member(out, "  ", name, value);
  }
  return out + "\n}\n";
}

void report_rounding(const std::vector<model::TensorError>& errors, const std::string& report,
                     bool lists) {
  constexpr size_t kShown = 10;
  const std::vector<const model::TensorError*> changed = changed_by_rounding(errors);
  if (!report.empty()) write_rounding_report(errors, report);
  if (changed.empty()) return print_result("no value was rounded\n");
  if (lists)
    print_result(rounding_table(std::span(changed).first(std::min(kShown, changed.size()))));
  print_result(
      fmt::format("rounded: {} of {} tensors, {} by {:.2g} % (rms) at most{}\n", changed.size(),
                  errors.size(), changed.front()->name, 100 * changed.front()->relative(),
                  lists ? "" : "; -v lists the largest changes, --report FILE all of them"));
}

}  // namespace strata::apps
