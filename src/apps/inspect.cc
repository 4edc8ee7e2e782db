// SPDX-License-Identifier: Apache-2.0
#include "apps/inspect.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "apps/inspect_adapter.h"
#include "base/error.h"
#include "checkpoint/gguf/gguf_model.h"
#include "model/cache_layout.h"
#include "model/weights/load.h"
#include "model/weights/narrow_forms.h"
#include "model/weights/tensor_names.h"
#include "ops/cpu/cpu_backend.h"
#include "report/format.h"
#include "report/table.h"
#include "setup/backend.h"
#include "setup/model_path.h"
#include "setup/text_stack.h"
#include "setup/weights_text.h"

namespace strata::apps {
namespace {

constexpr int64_t kPagePositions = 64;  // rounded up to what the layers' ratios divide

struct Findings {
  std::optional<model::ModelConfig> config;
  std::unique_ptr<CheckpointSource> checkpoint;
  int64_t num_parameters = 0;
  int64_t num_bytes = 0;
  std::map<std::string, int64_t> tensors_by_dtype;
  std::vector<std::string> ignored;
  std::vector<std::string> warnings;
  std::vector<std::string> faults;
  std::string narrow;  // what stays in 4 to 8 bits
  std::string tokenizer = "none";
  std::string chat_template = "none";
};

void inspect_config(const InspectOptions& options, const ModelTexts& texts, Findings& f) {
  model::ParsedConfig parsed = model::read_config(texts, options.strict_config);
  f.config = parsed.config;
  f.warnings = std::move(parsed.warnings);
}

void count_tensors_and_bytes(Findings& f) {
  for (const CheckpointTensor& tensor : f.checkpoint->tensors()) {
    ++f.tensors_by_dtype[tensor.info.dtype_name];
    f.num_bytes += tensor.info.num_bytes();
  }
}

void verify_weight_tying(Findings& f) {
  model::ParsedConfig parsed{.config = *f.config, .warnings = std::move(f.warnings)};
  model::verify_weight_tying(*f.checkpoint, parsed);
  f.config = parsed.config;
  f.warnings = std::move(parsed.warnings);
}

// Matches the file's tensors with the config's parameters, which it counts.
void match_tensors(Findings& f, const Backend& backend) {
  // Pages of the zeroed weights are never touched, so this costs addresses, not memory.
  model::ModelWeights weights(backend, *f.config, DType::kBF16);
  f.num_parameters = weights.num_parameters();
  for (std::string& fault : model::match_parameters(*f.checkpoint, weights, f.ignored)) {
    f.faults.push_back(std::move(fault));
  }
}

void inspect_narrow_weights(Findings& f, const Backend& backend) {
  model::KeptForms forms =
      model::find_narrow_forms(*f.checkpoint, backend, *f.config, model::NarrowLook::kScales);
  if (!forms.faults.empty()) f.warnings.push_back(forms.warning());
  const model::ModelWeights kept(backend, *f.config, DType::kBF16, nullptr, std::nullopt,
                                 std::move(forms.forms));
  f.narrow = narrow_text(kept, f.checkpoint.get());
}

void inspect_weights(const InspectOptions& options, Findings& f) {
  f.checkpoint = open_checkpoint(options.model);
  count_tensors_and_bytes(f);
  if (!f.config) return;
  const CpuBackend backend(CpuPath::kReference, 1);
  verify_weight_tying(f);
  match_tensors(f, backend);
  if (f.faults.empty()) inspect_narrow_weights(f, backend);
}

std::vector<std::string> end_token_names(const TextStack& text) {
  std::vector<std::string> names;
  for (const int32_t id : text.end_tokens().stop)
    names.push_back(text.tokenizer().id_to_token(id).value_or(fmt::format("{}", id)));
  return names;
}

void inspect_tokenizer(const ModelTexts& texts, Findings& f) {
  if (!text::Tokenizer::find(texts)) return;
  const TextStack text(texts);
  f.tokenizer = fmt::format("{} entries, ends with {}", text.tokenizer().vocab_size(),
                            fmt::join(end_token_names(text), " "));
  if (f.config && text.tokenizer().vocab_size() > f.config->vocab_size) {
    f.warnings.push_back(
        fmt::format("tokenizer: {} entries, the model's vocabulary has {}; added tokens beyond it "
                    "have no row, and text with one is refused",
                    text.tokenizer().vocab_size(), f.config->vocab_size));
  }
  if (text.has_template()) f.chat_template = "yes";
}

// What the layers are made of, each kind of block once.
std::string blocks_text(const model::ModelConfig& c) {
  std::vector<std::string> kinds;
  for (const model::LayerConfig& layer : c.layers) {
    for (const model::Sublayer& sublayer : layer) {
      std::string kind = sublayer.block.ops().describe(sublayer.block.config());
      if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) kinds.push_back(kind);
    }
  }
  return fmt::format("{}", fmt::join(kinds, ", "));
}

std::string shapes_text(const model::ModelConfig& c) {
  return fmt::format("{} layers, width {}, {}, vocabulary {}, context {}{}", c.num_layers(),
                     c.hidden_size, blocks_text(c), c.vocab_size, c.max_position_embeddings,
                     c.tie_word_embeddings ? ", tied" : "");
}

// Cache of a sampled sequence in bf16: what each token adds, and what it takes once.
struct CacheSize {
  double token = 0.0;
  int64_t sequence = 0;
};
CacheSize cache_size(const model::ModelConfig& c) {
  const model::CacheLayout layout(c, DType::kBF16, kPagePositions);
  return {.token = layout.position_bytes(), .sequence = layout.state_bytes()};
}

std::string dtypes_text(const Findings& f) {
  std::vector<std::string> parts;
  for (const auto& [dtype, count] : f.tensors_by_dtype)
    parts.push_back(fmt::format("{} {}", count, dtype));
  return fmt::format("{}", fmt::join(parts, ", "));
}

void add_config_rows(const model::ModelConfig& config, report::Table& table) {
  table.add_row({"family", fmt::format("{} ({})", config.family, config.architecture)});
  table.add_row({"shapes", shapes_text(config)});
  const CacheSize cache = cache_size(config);
  table.add_row({"cache", fmt::format("{} a token and {} a sequence, in bf16",
                                      report::format_bytes(std::llround(cache.token)),
                                      report::format_bytes(cache.sequence))});
}

std::string tensors_text(const CheckpointSource& checkpoint) {
  report::Table table(
      {{"tensor"}, {"dtype"}, {"shape", report::Align::kRight}, {"bytes", report::Align::kRight}});
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    table.add_row({tensor.info.name, tensor.info.dtype_name, tensor.info.shape_text(),
                   std::to_string(tensor.info.num_bytes())});
  }
  return table.text();
}

void add_weight_rows(const Findings& f, report::Table& table) {
  if (f.num_parameters > 0) {
    table.add_row({"parameters", report::format_count(static_cast<double>(f.num_parameters))});
  }
  if (f.checkpoint) {
    table.add_row(
        {"tensors", fmt::format("{}; {} in {} file(s)", dtypes_text(f),
                                report::format_bytes(f.num_bytes), f.checkpoint->shards().size())});
  }
  const std::string dequantised = dequantised_text(f.checkpoint.get());
  if (!dequantised.empty()) table.add_row({"dequantised", dequantised});
  if (!f.narrow.empty()) table.add_row({"in 4 to 8 bits", f.narrow});
}

void print_table(const InspectOptions& options, const Findings& f) {
  report::Table table({{""}, {""}});
  table.add_row({is_gguf(options.model) ? "model in GGUF" : "directory", options.model});
  if (f.config) add_config_rows(*f.config, table);
  add_weight_rows(f, table);
  table.add_row({"tokenizer", f.tokenizer});
  table.add_row({"CPU path here", describe_arithmetic_in_use()});
  table.add_row({"chat template", f.chat_template});
  for (const std::string& name : f.ignored) table.add_row({"not used", name});
  for (const std::string& warning : f.warnings) table.add_row({"warning", warning});
  fmt::print("{}", table.text());
  if (options.tensors && f.checkpoint) fmt::print("\n{}", tensors_text(*f.checkpoint));
  for (const std::string& fault : f.faults) fmt::print("FAULT {}\n", fault);
}

void add_config_members(const model::ModelConfig& c, boost::json::object& out) {
  out["family"] = c.family;
  out["architecture"] = c.architecture;
  out["num_layers"] = c.num_layers();
  out["hidden_size"] = c.hidden_size;
  out["vocab_size"] = c.vocab_size;
  out["context"] = c.max_position_embeddings;
  out["tied"] = c.tie_word_embeddings;
  const CacheSize cache = cache_size(c);
  out["cache_bytes_per_token"] = cache.token;
  out["cache_bytes_per_sequence"] = cache.sequence;
}

boost::json::array tensors_json(const CheckpointSource& checkpoint) {
  boost::json::array tensors;
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    tensors.push_back(boost::json::object{{"name", tensor.info.name},
                                          {"dtype", tensor.info.dtype_name},
                                          {"shape", tensor.info.shape_text()},
                                          {"bytes", tensor.info.num_bytes()}});
  }
  return tensors;
}

void print_json(const InspectOptions& options, const Findings& f) {
  boost::json::object out;
  out["directory"] = options.model;
  if (f.config) add_config_members(*f.config, out);
  out["num_parameters"] = f.num_parameters;
  out["bytes"] = f.num_bytes;
  out["tensors_by_dtype"] = boost::json::value_from(f.tensors_by_dtype);
  out["tokenizer"] = f.tokenizer;
  out["chat_template"] = f.chat_template;
  out["ignored"] = boost::json::value_from(f.ignored);
  out["warnings"] = boost::json::value_from(f.warnings);
  out["faults"] = boost::json::value_from(f.faults);
  if (options.tensors && f.checkpoint) out["tensors"] = tensors_json(*f.checkpoint);
  fmt::print("{}\n", boost::json::serialize(out));
}

}  // namespace

void collect_fault(std::vector<std::string>& faults, FunctionRef<void()> body) {
  try {
    body();
  } catch (const Error& error) {
    const std::string fault = error.what();
    if (std::find(faults.begin(), faults.end(), fault) == faults.end()) faults.push_back(fault);
  }
}

int run_inspect(const InspectOptions& options) {
  if (is_adapter_directory(options.model)) return inspect_adapter(options);
  Findings findings;
  std::optional<ModelTexts> texts;
  collect_fault(findings.faults, [&] {
    texts = open_texts(options.model);
    inspect_config(options, *texts, findings);
  });
  collect_fault(findings.faults, [&] { inspect_weights(options, findings); });
  if (texts) collect_fault(findings.faults, [&] { inspect_tokenizer(*texts, findings); });
  options.json ? print_json(options, findings) : print_table(options, findings);
  return findings.faults.empty() ? 0 : 2;
}

}  // namespace strata::apps
