// SPDX-License-Identifier: Apache-2.0
#include "data/dataset.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "data/overlong.h"
#include "data/prompt.h"
#include "report/progress.h"

namespace strata::data {
namespace {

constexpr size_t kMaxReported = 5, kMaxLooked = 20;

constexpr const char* kPairAdvice =
    "strata train --loss dpo (or orpo) trains on pairs; to train on the chosen answers alone: jq "
    "-c "
    "'{prompt, completion: .chosen}' FILE > "
    "FILE.jsonl, "
    "and where they are lists of messages: jq -c '{messages: .chosen}'";

uint64_t hash_pair(const Example& chosen, const Example& rejected) {
  Hash hash;
  for (const Example* side : {&chosen, &rejected}) {
    hash.mix(side->targets.size());
    hash.mix(static_cast<uint64_t>(side->tokens.front()));
    hash.mix_bytes(side->targets.data(), side->targets.size() * sizeof(side->targets[0]));
    hash.mix_bytes(side->weights.data(), side->weights.size() * sizeof(side->weights[0]));
  }
  return hash.value();
}

class DatasetReader {
 public:
  DatasetReader(const ExampleContext& context, const ReadOptions& options,
                report::Progress* progress)
      : context_(context),
        options_(options),
        progress_(progress),
        store_(std::make_shared<ExampleStore>(options.in_memory)) {}

  void read_source(const Source& source) {
    DataFile& file = dataset_.files.emplace_back(
        DataFile{.file = std::make_shared<const InputFile>(source.path), .weight = source.weight});
    const std::string begin = read_first_bytes(*file.file);
    const NoRecords kind = explain_no_records(source.path, begin);
    if (kind.is_binary) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{}: {}", file.file->shown(), kind.what));
    }
    file.layout = detect_layout(source.path, begin);
    const int64_t faults = dataset_.faults.count;
    read_records(file);
    if (dataset_.faults.count > faults && dataset_.faults.advice.empty()) {
      dataset_.faults.advice = kind.what;
    }
  }

  Dataset take_dataset(const std::vector<Source>& sources) {
    if (dataset_.faults.count > 0 && !options_.looks_only) {
      throw Error(ErrorCode::kInvalidArgument, dataset_.faults.text());
    }
    store_->seal();
    dataset_.examples = Examples(store_);
    if (options_.prompts)
      dataset_.records = std::make_shared<const std::vector<std::string>>(std::move(records_));
    dataset_.num_tokens = dataset_.examples.num_tokens();
    dataset_.num_trained = dataset_.examples.num_trained();
    if (dataset_.examples.empty() && !options_.looks_only) throw_no_examples(sources);
    return std::move(dataset_);
  }

 private:
  [[noreturn]] void throw_no_examples(const std::vector<Source>& sources) const {
    std::vector<std::string> names;
    for (const Source& source : sources) names.push_back(source.path);
    const std::string files = fmt::format("{}", fmt::join(names, ", "));
    int64_t num_marked_out = 0;
    for (const DataFile& file : dataset_.files) num_marked_out += file.marked_out.count;
    std::string pairs;
    for (const DataFile& file : dataset_.files) {
      const std::string text = left_out_pairs_text(file);
      if (!text.empty()) pairs += "\n" + text;
    }
    if (!pairs.empty()) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{}: no pair is left to train on:{}", files, pairs));
    }
    if (dataset_.num_too_long == 0 && num_marked_out > 0) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{}: all {} examples are left out by their marks (weight, train, "
                              "label and their like; docs/data.md)",
                              files, num_marked_out));
    }
    throw Error(ErrorCode::kInvalidArgument,
                dataset_.num_too_long == 0
                    ? fmt::format("{}: no examples in it", files)
                    : fmt::format("{}: all {} examples are longer than {} tokens; raise "
                                  "--max-length",
                                  files, dataset_.num_too_long, options_.max_length));
  }

  void read_records(DataFile& file) {
    file.first = store_->size();
    const auto records = make_record_reader(*file.file, file.layout);
    while (const auto record = records->next()) {
      add_record(*record, file);
      if (progress_ != nullptr) progress_->update(bytes_done_ + records->offset());
    }
    bytes_done_ += file.file->size();
    file.count = store_->size() - file.first;
  }
  void add_record(const Record& record, DataFile& file) {
    if (!record.fault.empty()) return add_fault(record, file, record.fault);
    try {
      if (options_.prompts) return add_prompt(record, file);
      ReadRecord read = load_record(record, file);
      if (read.is_left_out) return;
      if (options_.pairs) return add_pair(read, record.line, file);
      store_example(read.example, record.line, file);
    } catch (const Error& error) {
      add_fault(record, file, error.what());
    }
  }

  ReadRecord load_record(const Record& record, DataFile& file) {
    const std::string renamed =
        options_.fields.empty() ? "" : rename_fields(record.json, options_.fields);
    ReadRecord read = data::read_record(options_.fields.empty() ? record.json : renamed, context_,
                                        dataset_.ignored_fields);
    file.num_marked_out += read.num_marked_out;
    file.has_read_clock |= read.has_read_clock;
    for (const std::string& what : read.not_found)
      file.not_found.add(file.file->shown(), record.line, what, kMaxReported);
    if (read.is_left_out) {
      ++file.forms[static_cast<size_t>(read.form)];
      file.marked_out.add(record.line);
      return read;
    }
    if (options_.pairs) {
      require_pair(read);
    } else if (!options_.looks_only) {
      if (read.rejected && dataset_.faults.advice.empty()) dataset_.faults.advice = kPairAdvice;
      refuse_pair(read);
    }
    ++file.forms[static_cast<size_t>(read.form)];
    return read;
  }

  void add_fault(const Record& record, const DataFile& file, const std::string& what) {
    dataset_.faults.add(file.file->shown(), record.line, what,
                        options_.looks_only ? kMaxLooked : kMaxReported);
  }

  void store_example(const Example& example, int64_t line, DataFile& file) {
    ++dataset_.num_lines;
    const bool is_too_long = std::ssize(example.tokens) + 1 > options_.max_length;
    if (is_too_long) {
      ++dataset_.num_too_long;
      file.too_long.add(line);
    }
    if (!is_too_long || options_.looks_only) {
      store_->add(example);
      if (options_.looks_only) file.lines.push_back(line);
      return;
    }
    const std::vector<Example> parts = parts_of_overlong(example);
    for (const Example& part : parts) store_->add(part);
    if (parts.empty()) file.left_out.add(line);
  }

  void add_pair(const ReadRecord& pair, int64_t line, DataFile& file) {
    ++dataset_.num_lines;
    Example chosen = pair.example, rejected = *pair.rejected;
    if (pair.is_tie) return file.ties.add(line);
    if (const int64_t most = options_.max_length;
        std::ssize(chosen.tokens) + 1 > most || std::ssize(rejected.tokens) + 1 > most) {
      ++dataset_.num_too_long;
      file.too_long.add(line);
      if (!options_.looks_only) {
        if (options_.overlong == Overlong::kDrop) return file.left_out.add(line);
        chosen = cut_example(chosen, most);
        rejected = cut_example(rejected, most);
        if (chosen.num_trained == 0 || rejected.num_trained == 0) return file.left_out.add(line);
      }
    }
    if (chosen.tokens == rejected.tokens && chosen.targets == rejected.targets)
      return file.equal_sides.add(line);
    if (!pairs_.insert(hash_pair(chosen, rejected)).second) return file.duplicates.add(line);
    store_->add_pair(chosen, rejected);
    if (options_.looks_only) file.lines.push_back(line);
  }

  void add_prompt(const Record& record, DataFile& file) {
    std::string json = options_.fields.empty() ? std::string(record.json)
                                               : rename_fields(record.json, options_.fields);
    ReadPrompt prompt = read_prompt(json, context_);
    file.has_read_clock |= prompt.has_read_clock;
    ++dataset_.num_lines;
    if (std::ssize(prompt.tokens) > options_.max_length) {
      ++dataset_.num_too_long;
      file.too_long.add(record.line);
      if (!options_.looks_only) return;
    }
    store_->add(example_of_prompt(std::move(prompt.tokens)));
    records_.push_back(std::move(json));
    file.lines.push_back(record.line);
  }

  [[nodiscard]] std::vector<Example> parts_of_overlong(const Example& example) const {
    if (options_.overlong == Overlong::kDrop) return {};
    if (options_.overlong == Overlong::kSplit) return split_example(example, options_.max_length);
    Example part = cut_example(example, options_.max_length);
    if (part.num_trained == 0) return {};
    return {std::move(part)};
  }

  const ExampleContext& context_;
  const ReadOptions& options_;
  report::Progress* progress_;
  std::shared_ptr<ExampleStore> store_;
  Dataset dataset_;
  std::vector<std::string> records_;    // of prompts
  std::unordered_set<uint64_t> pairs_;  // hashes of those that were added
  int64_t bytes_done_ = 0;
};

std::string_view name_of(Layout layout) {
  switch (layout) {
    case Layout::kLines:
      return "";
    case Layout::kArray:
      return "a JSON array";
    case Layout::kCsv:
      return "CSV";
    case Layout::kTsv:
      return "TSV";
  }
  return "";
}

std::string_view name_of(Packing packing) {
  return packing == Packing::kGzip ? "gzip" : packing == Packing::kZstd ? "zstd" : "";
}

}  // namespace

Overlong parse_overlong(const std::string& text) {
  if (text == "drop") return Overlong::kDrop;
  if (text == "cut") return Overlong::kCut;
  if (text == "split") return Overlong::kSplit;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--overlong: got '{}', want drop, cut or split", text));
}

const std::string& record_of(const Dataset& dataset, size_t i) {
  return (*dataset.records)[static_cast<size_t>(dataset.examples.order()[i])];
}

int64_t record_bytes(const Dataset& dataset) {
  int64_t bytes = 0;
  if (!dataset.records) return bytes;
  for (const std::string& record : *dataset.records)
    bytes += std::ssize(record) + static_cast<int64_t>(sizeof(record));
  return bytes;
}

void FaultList::add(const std::string& file, int64_t line, const std::string& what, size_t shown) {
  ++count;
  if (first.size() < shown) first.push_back(fmt::format("{}:{}: {}", file, line, what));
}

std::string FaultList::text() const {
  std::string text = fmt::format("{}", fmt::join(first, "\n"));
  const int64_t more = count - std::ssize(first);
  if (more > 0) text += fmt::format("\nand {} more bad lines", more);
  if (count > 0 && !advice.empty()) text += "\n" + advice;
  return text;
}

void LineList::add(int64_t line) {
  ++count;
  if (first.size() < kShown) first.push_back(line);
}

std::string LineList::text() const {
  const int64_t more = count - std::ssize(first);
  if (more > 0) return fmt::format("{} and {} more", fmt::join(first, ", "), more);
  if (first.size() < 2) return fmt::format("{}", fmt::join(first, ", "));
  const std::vector<int64_t> but_last(first.begin(), first.end() - 1);
  return fmt::format("{} and {}", fmt::join(but_last, ", "), first.back());
}

Dataset read_dataset(const std::vector<Source>& sources, const ExampleContext& context,
                     const ReadOptions& options, report::Progress* progress) {
  DatasetReader reader(context, options, progress);
  for (const Source& source : sources) reader.read_source(source);
  return reader.take_dataset(sources);
}

Dataset with_order(const Dataset& dataset, std::vector<int64_t> order) {
  Dataset out = dataset;
  out.examples = Examples(dataset.examples.store(), std::move(order));
  out.num_tokens = out.examples.num_tokens();
  out.num_trained = out.examples.num_trained();
  return out;
}

std::string describe_format(const DataFile& file) {
  std::vector<std::string> forms, how;
  for (size_t form = 0; form < kNumForms; ++form) {
    const std::string_view name = form_description(static_cast<Form>(form));
    if (file.forms[form] > 0 && !name.empty()) forms.emplace_back(name);
  }
  for (const std::string_view name : {name_of(file.layout), name_of(file.file->packing())}) {
    if (!name.empty()) how.emplace_back(name);
  }
  if (forms.empty() && how.empty()) return {};
  if (forms.empty()) return fmt::format("{} is {}", file.file->shown(), fmt::join(how, ", "));
  std::string text =
      fmt::format("{} looks like {}", file.file->shown(), fmt::join(forms, "; and "));
  if (!how.empty()) text += fmt::format(" ({})", fmt::join(how, ", "));
  return text;
}

std::string marked_out_text(const DataFile& file) {
  std::string text;
  if (file.num_marked_out > 0) {
    text = fmt::format("{}: {} answer{} marked as not to be trained on", file.file->shown(),
                       file.num_marked_out, file.num_marked_out == 1 ? " is" : "s are");
  }
  if (file.marked_out.count == 0) return text;
  text += text.empty() ? file.file->shown() + ": " : "; ";
  return text + fmt::format("{} example{} left out by {} marks (line{} {})", file.marked_out.count,
                            file.marked_out.count == 1 ? " is" : "s are",
                            file.marked_out.count == 1 ? "its" : "their",
                            file.marked_out.count == 1 ? "" : "s", file.marked_out.text());
}

std::string left_out_pairs_text(const DataFile& file) {
  int64_t count = 0;
  std::vector<std::string> parts;
  const auto add = [&](const LineList& lines, const char* what) {
    if (lines.count == 0) return;
    count += lines.count;
    parts.push_back(fmt::format("{} {} (line{} {})", lines.count, what, lines.count == 1 ? "" : "s",
                                lines.text()));
  };
  add(file.equal_sides, "with equal answers");
  add(file.duplicates, "that came before");
  add(file.ties, "with equal scores");
  if (parts.empty()) return {};
  return fmt::format("{}: {} pair{} left out: {}", file.file->shown(), count,
                     count == 1 ? " is" : "s are", fmt::join(parts, ", "));
}

std::string overlong_text(const DataFile& file, const ReadOptions& options) {
  if (file.too_long.count == 0) return {};
  const bool is_one = file.too_long.count == 1;
  if (options.prompts) {
    return fmt::format(
        "{}: {} prompt{} more than {} tokens, what --max-length leaves before the answer's "
        "--max-tokens, and {} dropped (line{} {})",
        file.file->shown(), file.too_long.count, is_one ? " has" : "s have", options.max_length,
        is_one ? "is" : "are", is_one ? "" : "s", file.too_long.text());
  }
  std::string text = fmt::format("{}: {} example{} longer than --max-length {} {}",
                                 file.file->shown(), file.too_long.count, is_one ? "" : "s",
                                 options.max_length, is_one ? "is" : "are");
  text += options.overlong == Overlong::kDrop  ? " dropped"
          : options.overlong == Overlong::kCut ? " cut"
                                               : " split";
  text += fmt::format(" (line{} {})", is_one ? "" : "s", file.too_long.text());
  if (options.overlong == Overlong::kDrop) return text + "; --overlong cut or split keeps them";
  if (file.left_out.count == 0) return text;
  return text + fmt::format("; {} of them left out, with nothing to train on (line{} {})",
                            file.left_out.count, file.left_out.count == 1 ? "" : "s",
                            file.left_out.text());
}

}  // namespace strata::data
