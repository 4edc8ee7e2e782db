// SPDX-License-Identifier: Apache-2.0
#include "apps/export/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "apps/export/export_model.h"
#include "apps/export/modelfile.h"
#include "apps/export/perplexity.h"
#include "base/error.h"
#include "base/files.h"
#include "base/option_values.h"
#include "base/say.h"
#include "base/stop.h"
#include "data/sources.h"
#include "model/export/write_checkpoint.h"
#include "model/export/write_gguf.h"
#include "model/export/write_gguf_lora.h"
#include "model/export/write_mxfp4.h"
#include "model/export/write_nf4.h"
#include "report/format.h"
#include "setup/engine_setup.h"
#include "setup/example_files.h"

namespace strata::apps {
namespace {

constexpr int64_t kMaxLength = 4096;  // of an example of --data, in tokens

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, what);
}

struct TypeRow {
  std::string_view name, of_config;
  DType dtype;
};
constexpr TypeRow kFull[] = {{"bf16", "bfloat16", DType::kBF16},
                             {"f16", "float16", DType::kF16},
                             {"f32", "float32", DType::kF32}};

const TypeRow* find_type(std::string_view name) {
  const auto* found = std::find_if(std::begin(kFull), std::end(kFull),
                                   [&](const TypeRow& row) { return row.name == name; });
  return found == std::end(kFull) ? nullptr : found;
}

// The embedding's, for all weights; bf16 where it has few bits.
std::string type_to_keep(const model::LoadedModel& names) {
  const model::ModelWeights& weights = *names.weights;
  const auto& embedding = weights.table()[weights.embedding_index()];
  const TensorInfo& info = names.checkpoint->find(embedding.name)->info;
  const bool is_narrow = info.dtype_name != dtype_name(info.dtype);
  for (const TypeRow& row : kFull) {
    if (!is_narrow && row.dtype == info.dtype) return std::string(row.name);
  }
  return "bf16";
}

// Types of safetensors in 4 bits, which other libraries read.
struct FourBitRow {
  std::string_view name, reader;
  decltype(&model::write_nf4) write;
  decltype(&model::nf4_config) config;
};
constexpr FourBitRow kFourBit[] = {
    {"nf4", "bitsandbytes", model::write_nf4, model::nf4_config},
    {"mxfp4", "transformers", model::write_mxfp4, model::mxfp4_config}};

const FourBitRow* find_four_bit_type(std::string_view name) {
  const auto* found = std::find_if(std::begin(kFourBit), std::end(kFourBit),
                                   [&](const FourBitRow& row) { return row.name == name; });
  return found == std::end(kFourBit) ? nullptr : found;
}

void check_safetensors_options(const ConvertOptions& o) {
  if (const FourBitRow* type = find_four_bit_type(o.type)) {
    if (o.layout != "stacked") return;
    refuse(fmt::format("--layout stacked: of full types alone; {} has a tensor for each layer",
                       type->reader));
  }
  if (o.type == "keep" || find_type(o.type) != nullptr) return;
  refuse(fmt::format("--type {}: only GGUF files have this type: add --to gguf", o.type));
}

void check_gguf_options(const ConvertOptions& o) {
  if (o.type == "nf4") refuse("--type nf4: of safetensors alone, for bitsandbytes");
  if (o.layout == "stacked") {
    refuse("--layout stacked: of safetensors alone; GGUF files have a tensor for each layer");
  }
}

int convert_to_4_bits(const ConvertOptions& o, const FourBitRow& type, ExportModel& model) {
  AtomicDir dir(o.out);
  const auto errors = type.write(model.backend(), model.source(), model.names(), dir.file("."));
  if (!errors) return StopSignals::exit_code();
  model.write_small_files(dir.file("."), "");
  // Over the one that was just written: transformers reads 4 bits where it says so.
  const std::string config = dir.file("config.json");
  write_file_atomic(config, with_json_members(model.read_updated_config(""), config,
                                              {{"quantization_config", type.config()}}));
  dir.commit();
  print_result(fmt::format("{}: {} tensors in 4 bits\n", o.out, errors->size()));
  report_rounding(*errors, o.report, o.verbose);
  return 0;
}

int convert_to_safetensors(const ConvertOptions& o, ExportModel& model) {
  if (const FourBitRow* type = find_four_bit_type(o.type)) {
    return convert_to_4_bits(o, *type, model);
  }
  const TypeRow* type = find_type(o.type);
  model::WriteOptions options = {.shard_bytes = parse_size("shard-size", o.shard_size),
                                 .stacked = o.layout == "stacked"};
  if (type != nullptr) options.dtype = type->dtype;
  AtomicDir dir(o.out);
  const auto errors = model::write_checkpoint(model.backend(), model.source(), model.names(),
                                              dir.file("."), options);
  if (!errors) return StopSignals::exit_code();
  model.write_small_files(dir.file("."), type == nullptr ? "" : type->of_config);
  dir.commit();
  print_result(fmt::format("{}: {} tensors\n", o.out, errors->size()));
  report_rounding(*errors, o.report, o.verbose);
  return 0;
}

// A directory's dots are of its name, as in Qwen2.5-7B; a file's last one is of its form.
std::string model_name_of(const std::filesystem::path& source) {
  const std::filesystem::path named = source.has_filename() ? source : source.parent_path();
  return std::filesystem::is_directory(named) ? named.filename() : named.stem();
}

// From where the Modelfile is, where both are in one folder.
std::string gguf_path_for_modelfile(const ConvertOptions& o) {
  const std::filesystem::path gguf = std::filesystem::absolute(o.out).lexically_normal();
  const std::filesystem::path file = std::filesystem::absolute(o.modelfile).lexically_normal();
  return gguf.parent_path() == file.parent_path() ? "./" + gguf.filename().string() : gguf.string();
}

int convert_to_gguf(const ConvertOptions& o, ExportModel& model) {
  std::string modelfile;  // its faults come before minutes of work
  if (!o.modelfile.empty()) modelfile = make_modelfile(model.texts(), gguf_path_for_modelfile(o));
  const auto errors =
      model::write_gguf(model.backend(), model.source(), model.names(), model.texts(), o.out,
                        {.type = o.type == "keep" ? type_to_keep(model.names()) : o.type,
                         .name = model_name_of(model.names().dir),
                         .unties = model.merged() != nullptr && model.merged()->unties()});
  if (!errors) return StopSignals::exit_code();
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(o.out));
  print_result(
      fmt::format("{}: {} tensors, {}\n", o.out, errors->size(), report::format_bytes(bytes)));
  if (!o.modelfile.empty()) {
    write_file_atomic(o.modelfile, modelfile);
    print_result(
        fmt::format("{}: for ollama (ollama create NAME -f {})\n", o.modelfile, o.modelfile));
  }
  report_rounding(*errors, o.report, o.verbose);
  return 0;
}

bool has_one_plain_adapter(const ConvertOptions& o) {
  return o.parts.size() == 1 && o.parts.front().weight == 1.0;
}

void check_gguf_lora_options(const ConvertOptions& o) {
  const bool is_plain = has_one_plain_adapter(o);
  if (!is_plain || o.type != "keep" || o.layout != "layers" || !o.data.empty() ||
      !o.modelfile.empty()) {
    refuse(
        "--to gguf-lora: takes one --adapter without a weight, and no type, layout, data or "
        "modelfile; "
        "llama.cpp scales adapters itself (--lora-scaled)");
  }
}

int convert_to_gguf_lora(const ConvertOptions& o) {
  check_gguf_lora_options(o);
  check_no_overwrite("out", o.out);
  make_parent_folder("out", o.out);
  ExportModel model(open_texts(o.model), {}, o.threads);
  const int64_t count =
      model::write_gguf_lora(model.backend(), model.names(), o.parts.front().dir, o.out);
  print_result(fmt::format("{}: an adapter of {} tensors\n", o.out, count));
  return 0;
}

// Adapters as measure_perplexity() takes them: none, or one as it is.
std::string only_adapter(const ConvertOptions& o) {
  if (o.parts.empty()) return {};
  if (has_one_plain_adapter(o)) return o.parts.front().dir;
  refuse("--data: takes one adapter without a weight; measure others with strata train --eval");
}

void report_perplexity_change(const ConvertOptions& o, const ModelTexts& texts,
                              const std::string& adapter, const data::Dataset& data) {
  const LoadSpec spec = read_spec({.model = o.model, .threads = o.threads}, texts);
  // What is computed in is not what changed.
  const char* const dtype = spec.dtype == DType::kF32 ? "f32" : "bf16";
  const double before = measure_perplexity(spec, adapter, data);
  const double after = measure_perplexity(
      read_spec({.model = o.out, .dtype = dtype, .threads = o.threads}), {}, data);
  print_result(
      fmt::format("perplexity of {} tokens of {}: {:.4f} before, {:.4f} after ({:+.3f} %)\n",
                  data.num_trained, o.data, before, after, 100.0 * (after / before - 1.0)));
}

data::Dataset read_data_to_predict(const ConvertOptions& o, const ModelTexts& texts) {
  return read_examples("data", data::find_sources("data", {o.data}, data::Weights::kNone),
                       TextStack(texts), {.max_length = kMaxLength});
}

// Checks that no output would replace a file, and makes the folders above them.
void prepare_destinations(const ConvertOptions& o) {
  check_no_overwrite("out", o.out);
  if (o.to == "gguf") make_parent_folder("out", o.out);
  if (!o.report.empty()) make_parent_folder("report", o.report);
  if (o.modelfile.empty()) return;
  if (o.to != "gguf") refuse("--modelfile: of a GGUF file alone: add --to gguf");
  check_no_overwrite("modelfile", o.modelfile);
  make_parent_folder("modelfile", o.modelfile);
}

int convert_model(const ConvertOptions& o, const ModelTexts& texts) {
  ignore_closed_pipes();
  const StopSignals signals("strata: stopping; nothing is written", StopSignals::First::kNoted,
                            StopSignals::Work::kToLose);
  ExportModel model(texts, o.parts, o.threads, find_adapter_of_texts(texts, o.parts));
  return o.to == "gguf" ? convert_to_gguf(o, model) : convert_to_safetensors(o, model);
}

}  // namespace

int run_convert(const ConvertOptions& options) {
  if (options.to == "gguf-lora") return convert_to_gguf_lora(options);
  options.to == "gguf" ? check_gguf_options(options) : check_safetensors_options(options);
  prepare_destinations(options);
  const ModelTexts texts = open_texts(options.model);
  std::optional<data::Dataset> data;
  std::string adapter;
  if (!options.data.empty()) {
    adapter = only_adapter(options);
    data = read_data_to_predict(options, texts);
  }
  const int code = convert_model(options, texts);
  if (code != 0) return code;
  if (data) report_perplexity_change(options, texts, adapter, *data);
  return 0;
}

}  // namespace strata::apps
