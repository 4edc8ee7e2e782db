// SPDX-License-Identifier: Apache-2.0
#include "model/export/write_gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <memory>
#include <span>
#include <unordered_map>

#include "base/check.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/stop.h"
#include "checkpoint/gguf/gguf_model.h"
#include "checkpoint/gguf/sampling.h"
#include "checkpoint/gguf/vocabulary.h"
#include "model/export/gguf_keys.h"
#include "model/export/gguf_mixture.h"
#include "model/export/gguf_plan.h"
#include "text/json_numbers.h"

namespace strata::model {
namespace {

// The stored value of a weight's, the way back of GgufWeight::Change.
float to_stored_value(GgufWeight::Change change, float value) {
  switch (change) {
    case GgufWeight::Change::kNone:
      break;
    case GgufWeight::Change::kMinusOne:
      return value + 1.0f;
    case GgufWeight::Change::kLogOfNegative:
      return static_cast<float>(-std::exp(static_cast<double>(value)));
  }
  return value;
}

// A weight's values as the file has them, from the source, some rows at a time.
class StoredRows {
 public:
  StoredRows(const CheckpointSource& source, const WeightOrigin& origin, const GgufWeight& weight)
      : source_(source),
        tensor_(*source.find(origin.tensor)),
        origin_(origin),
        weight_(weight),
        columns_(weight.dims.back()),
        source_of_(weight.rows.size()) {
    for (size_t row = 0; row < weight.rows.size(); ++row) {
      source_of_[static_cast<size_t>(weight.rows[row])] = static_cast<int32_t>(row);
    }
  }

  [[nodiscard]] const std::string& stored_type() const { return tensor_.info.dtype_name; }
  [[nodiscard]] int64_t num_rows() const {
    int64_t rows = 1;
    for (size_t i = 0; i + 1 < weight_.dims.size(); ++i) rows *= weight_.dims[i];
    return rows;
  }
  // How many of them to read at once.
  [[nodiscard]] int64_t step() const {
    return std::max<int64_t>(1, kSliceElements / columns_ / (source_of_.empty() ? 1 : 2));
  }

  void read_rows(int64_t first, int64_t count, std::vector<float>& out) {
    out.resize(static_cast<size_t>(count * columns_));
    if (source_of_.empty()) {
      read_source(first, count, out.data());
    } else {
      read_reordered_rows(first, count, out.data());
    }
    permute_items(weight_.columns, 1, count, out);
    for (float& value : out) value = to_stored_value(weight_.change, value);
  }

 private:
  void read_source(int64_t first, int64_t count, float* out) const {
    source_.read_f32(tensor_, (origin_.first_row + first) * columns_, count * columns_, out);
  }

  // Rows move within a head, or heads among others: those of a slice lie close together, or in long
  // runs.
  void read_reordered_rows(int64_t first, int64_t count, float* out) {
    const auto begin = source_of_.begin() + first;
    const auto [least, most] = std::minmax_element(begin, begin + count);
    const int64_t span = int64_t{*most} - *least + 1;
    const auto rows =
        std::span(source_of_).subspan(static_cast<size_t>(first), static_cast<size_t>(count));
    if (span <= 2 * count) {
      read_picked_rows(*least, span, rows, out);
    } else {
      read_consecutive_runs(rows, out);
    }
  }

  // Picks rows among [least, least + span) of the source, which are read at once.
  void read_picked_rows(int64_t least, int64_t span, std::span<const int32_t> rows, float* out) {
    span_.resize(static_cast<size_t>(span * columns_));
    read_source(least, span, span_.data());
    for (const int32_t row : rows) {
      out = std::copy_n(span_.data() + (row - least) * columns_, columns_, out);
    }
  }

  // Rows of the source, those next to each other at once.
  void read_consecutive_runs(std::span<const int32_t> rows, float* out) const {
    for (size_t i = 0; i < rows.size();) {
      size_t run = 1;
      while (i + run < rows.size() && rows[i + run] == rows[i] + static_cast<int64_t>(run)) ++run;
      read_source(rows[i], static_cast<int64_t>(run), out + static_cast<int64_t>(i) * columns_);
      i += run;
    }
  }

  const CheckpointSource& source_;
  const CheckpointTensor& tensor_;
  const WeightOrigin& origin_;
  const GgufWeight& weight_;
  const int64_t columns_;
  std::vector<int32_t> source_of_;  // each row of the file; empty: as they are
  std::vector<float> span_;
};

using WeightsByTensor = std::unordered_map<std::string_view, std::vector<const GgufWeight*>>;

// The weights of each tensor, in the order of their rows.
WeightsByTensor weights_by_tensor(const std::vector<GgufWeight>& weights) {
  WeightsByTensor by_tensor;
  for (const GgufWeight& weight : weights) by_tensor[weight.from.info->name].push_back(&weight);
  for (auto& [name, parts] : by_tensor) {
    std::stable_sort(parts.begin(), parts.end(), [](const GgufWeight* a, const GgufWeight* b) {
      return a->first_row < b->first_row;
    });
  }
  return by_tensor;
}

class GgufExport {
 public:
  GgufExport(Backend& backend, const CheckpointSource& source, const LoadedModel& names,
             const ModelTexts& texts, const GgufOptions& options)
      : backend_(backend),
        source_(source),
        options_(options),
        config_(names.config),
        architecture_(require_gguf_architecture(config_)),
        origins_(source, names, options.unties),
        texts_(texts) {
    if (options.unties) config_.tie_word_embeddings = false;
    check_llama_cpp_runs_it();
    add_keys();
    add_tensors();
  }

  // Writes all of it; returns nothing where a signal asked to stop.
  std::optional<std::vector<TensorError>> try_write(const std::string& path) {
    const std::unique_ptr<ParsedHeader> read = read_back_header();
    const WeightsByTensor by_tensor = weights_by_tensor(read->weights());
    AtomicFile file(path);
    file.append(header_.serialise());
    std::vector<TensorError> errors;
    for (const GgufHeader::Tensor& tensor : header_.tensors()) {
      errors.push_back({.name = tensor.name, .to = std::string(tensor.type->name)});
      if (tensor.name == kDivisors) {
        file.append(std::as_bytes(std::span(divisors_)));
      } else if (!try_write_tensor(tensor, by_tensor.at(tensor.name), file, errors.back())) {
        return std::nullopt;
      }
      pad(tensor, file);
    }
    file.commit();
    return errors;
  }

 private:
  static constexpr const char* kDivisors = "rope_freqs.weight";

  void add_keys() {
    header_.add_text("general.architecture", architecture_.name);
    header_.add_text("general.type", "model");
    header_.add_text("general.name", options_.name);
    header_.add_integer("general.file_type", gguf_file_type(options_.type));
    header_.add_integer("general.quantization_version", 2);
    add_sampling(texts_, header_);
    add_config_keys(config_, header_);
    if (!add_vocabulary(texts_, config_.vocab_size, header_, architecture_.tokenizer)) {
      log(LogLevel::kWarning, fmt::format("{}: there is no tokenizer.json: the file takes token "
                                          "ids alone",
                                          texts_.where()));
    }
  }

  void add_tensors() {
    divisors_ = rope_divisors(config_);
    if (!divisors_.empty()) {
      header_.add_tensor(kDivisors, *find_gguf_encoding("f32")->type, {std::ssize(divisors_)});
    }
    add_model_tensors(config_, origins_, options_.type, source_.path(), header_);
  }

  void check_llama_cpp_runs_it() const {
    const std::string fault = find_llama_cpp_fault(config_);
    if (fault.empty()) return;
    throw Error(ErrorCode::kUnsupported,
                fmt::format("--to gguf: {}: llama.cpp does not run such a model: {}: use --to "
                            "safetensors",
                            source_.path(), fault));
  }

  // The model's config with the numbers that the file has of it.
  [[nodiscard]] ModelConfig config_as_stored() const {
    constexpr std::string_view kName = "config.json";
    constexpr int64_t kMostBytes = int64_t{64} << 20;
    const std::string where = texts_.where(kName);
    ModelConfig out =
        parse_config(text::round_json_numbers_to_f32(texts_.read(kName, kMostBytes), where), where,
                     /*strict=*/false)
            .config;
    out.tie_word_embeddings = config_.tie_word_embeddings;
    out.use_mtp = config_.use_mtp;
    return out;
  }

  // Whoever reads the file must see the same model.
  [[nodiscard]] std::unique_ptr<ParsedHeader> read_back_header() const {
    std::unique_ptr<ParsedHeader> read;
    ParsedConfig parsed;
    try {
      read = std::make_unique<ParsedHeader>(header_, divisors_);
      parsed = parse_config(gguf_config(read->model()), source_.path(), /*strict=*/true);
    } catch (const Error& error) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("--to gguf: {}: llama.cpp's keys cannot say what this model is: {}: "
                              "use --to safetensors",
                              source_.path(), ParsedHeader::without_path(error.what())));
    }
    const std::string difference = config_difference(config_as_stored(), parsed.config);
    if (difference.empty()) return read;
    throw Error(ErrorCode::kUnsupported,
                fmt::format("--to gguf: {}: llama.cpp has no key for this model's {}; its answers "
                            "would differ: use --to safetensors",
                            source_.path(), difference));
  }

  // Returns false where a signal asked to stop.
  bool try_write_tensor(const GgufHeader::Tensor& tensor,
                        const std::vector<const GgufWeight*>& weights, AtomicFile& file,
                        TensorError& error) {
    for (const GgufWeight* weight : weights) {
      StoredRows stored(source_, origins_.at(weight->name), *weight);
      error.from = stored.stored_type();
      const int64_t rows = stored.num_rows();
      for (int64_t first = 0; first < rows; first += stored.step()) {
        if (StopSignals::asked()) return false;
        stored.read_rows(first, std::min(stored.step(), rows - first), values_);
        encode_values(backend_, encoding_for(*tensor.type), values_, bytes_, error);
        file.append(bytes_);
      }
    }
    return true;
  }

  static const GgufEncoding& encoding_for(const GgufType& type) {
    std::string name(type.name);
    for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return *find_gguf_encoding(name);
  }

  static void pad(const GgufHeader::Tensor& tensor, AtomicFile& file) {
    constexpr int64_t kTo = GgufHeader::kAlignment;
    file.append(std::string(static_cast<size_t>((kTo - tensor.bytes % kTo) % kTo), '\0'));
  }

  Backend& backend_;
  const CheckpointSource& source_;
  const GgufOptions& options_;
  ModelConfig config_;
  const GgufArchitecture& architecture_;
  WeightOrigins origins_;
  const ModelTexts& texts_;
  GgufHeader header_;
  std::vector<float> divisors_, values_;
  std::vector<std::byte> bytes_;
};

}  // namespace

std::optional<std::vector<TensorError>> write_gguf(Backend& backend, const CheckpointSource& source,
                                                   const LoadedModel& names,
                                                   const ModelTexts& texts, const std::string& path,
                                                   const GgufOptions& options) {
  return GgufExport(backend, source, names, texts, options).try_write(path);
}

}  // namespace strata::model
