// SPDX-License-Identifier: Apache-2.0
#include "apps/data.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <boost/json.hpp>

#include "apps/data_diff.h"
#include "apps/data_rewards.h"
#include "apps/options.h"
#include "base/error.h"
#include "checkpoint/source.h"
#include "report/format.h"
#include "report/table.h"
#include "report/text_width.h"
#include "setup/adapter_texts.h"
#include "setup/example_files.h"
#include "setup/model_path.h"

namespace strata::apps {
namespace {

constexpr size_t kBar = 40;          // columns of the longest bar
constexpr size_t kMostShown = 1200;  // bytes of an example
constexpr const char* kOpen = "[[";  // around trained text
constexpr const char* kClose = "]]";

struct Lengths {
  std::vector<int64_t> sorted;  // tokens of each example, the last target included

  [[nodiscard]] int64_t at(double share) const {
    return sorted[static_cast<size_t>(share * static_cast<double>(sorted.size() - 1) + 0.5)];
  }
};

Lengths sorted_lengths(const data::Dataset& dataset) {
  const data::Examples& examples = dataset.examples;
  Lengths lengths{examples.has_pairs() ? examples.lengths_of_answers() : examples.lengths()};
  for (int64_t& length : lengths.sorted) ++length;
  std::sort(lengths.sorted.begin(), lengths.sorted.end());
  return lengths;
}

// Examples by length: of [first, last] tokens so many. Bins double.
struct Bin {
  int64_t first = 0, last = 0, count = 0;
};

std::vector<Bin> length_histogram(const Lengths& lengths) {
  std::vector<Bin> bins;
  for (const int64_t length : lengths.sorted) {
    const auto first = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(length)));
    if (bins.empty() || bins.back().first != first) bins.push_back({first, 2 * first - 1, 0});
    ++bins.back().count;
  }
  return bins;
}

std::string histogram_text(const std::vector<Bin>& bins, const char* counted) {
  int64_t most = 1;
  for (const Bin& bin : bins) most = std::max(most, bin.count);
  report::Table table({{"tokens", report::Align::kRight}, {counted, report::Align::kRight}, {""}});
  for (const Bin& bin : bins) {
    const auto width = static_cast<size_t>(
        static_cast<double>(kBar) * static_cast<double>(bin.count) / static_cast<double>(most));
    table.add_row({fmt::format("{} to {}", bin.first, bin.last), std::to_string(bin.count),
                   std::string(std::max<size_t>(width, 1), '#')});
  }
  return table.text();
}

struct TokenRun {
  bool is_trained = false;
  std::vector<int32_t> tokens = {};
};

// Runs of an example's tokens; the first token is never trained.
std::vector<TokenRun> split_by_training(const data::Example& example) {
  std::vector<TokenRun> runs = {{.is_trained = false, .tokens = {example.tokens.front()}}};
  for (size_t t = 0; t < example.targets.size(); ++t) {
    const bool is_trained = example.weights[t] != 0.0f;
    if (is_trained != runs.back().is_trained) runs.push_back({.is_trained = is_trained});
    runs.back().tokens.push_back(example.targets[t]);
  }
  return runs;
}

// The text of an example, with brackets around what is trained.
std::string decode_bracketed(const data::Example& example, const text::Tokenizer& tokenizer) {
  std::string out;
  for (const TokenRun& run : split_by_training(example)) {
    const std::string text = tokenizer.decode(run.tokens);
    out += run.is_trained ? kOpen + text + kClose : text;
  }
  return out;
}

std::string shortened(const std::string& text) {
  if (text.size() <= kMostShown) return text;
  const auto is_inside = [&](size_t at) { return (text[at] & 0xC0) == 0x80; };
  size_t head = kMostShown / 2, tail = text.size() - kMostShown / 2;
  while (is_inside(head)) --head;
  while (is_inside(tail)) ++tail;
  return fmt::format("{}\n  ... {} bytes ...\n{}", text.substr(0, head), tail - head,
                     text.substr(tail));
}

// The first, the last, and such between as many as are wanted.
std::vector<size_t> evenly_spaced_indices(size_t count, size_t wanted) {
  std::vector<size_t> out;
  for (size_t i = 0; i < std::min(count, wanted); ++i) {
    out.push_back(wanted >= count || wanted == 1 ? i : i * (count - 1) / (wanted - 1));
  }
  return out;
}

int64_t num_tokens(const data::Dataset& dataset, const Lengths& lengths) {
  return dataset.num_tokens + std::ssize(lengths.sorted);
}

std::string tokens_text(const data::Dataset& dataset, const Lengths& lengths) {
  const auto tokens = static_cast<double>(num_tokens(dataset, lengths));
  return fmt::format("{}, {} trained ({:.0f} %)", report::format_count(tokens),
                     report::format_count(static_cast<double>(dataset.num_trained)),
                     100.0 * static_cast<double>(dataset.num_trained) / tokens);
}

std::string too_long_text(const DataOptions& o, const data::Dataset& dataset) {
  data::LineList lines = dataset.files.front().too_long;
  const std::string where = dataset.files.size() == 1 ? " (lines " + lines.text() + ")" : "";
  return fmt::format("{} of more than --max-length {}{}; see --overlong of strata train",
                     dataset.num_too_long, o.max_length, where);
}

int64_t num_marked_out(const data::Dataset& dataset) {
  int64_t count = 0;
  for (const data::DataFile& file : dataset.files) count += file.num_marked_out;
  return count;
}

// Examples that their marks leave out.
int64_t num_left_out(const data::Dataset& dataset) {
  int64_t count = 0;
  for (const data::DataFile& file : dataset.files) count += file.marked_out.count;
  return count;
}

void print_summary(const DataOptions& o, const data::Dataset& dataset, const Lengths& lengths) {
  report::Table table({{""}, {""}});
  const bool has_pairs = dataset.examples.has_pairs();
  table.add_row({has_pairs ? "pairs" : "examples", std::to_string(dataset.examples.size())});
  table.add_row({"tokens", tokens_text(dataset, lengths)});
  table.add_row(
      {"length", fmt::format("shortest {}, half {} or less, 95 % {} or less, longest {}",
                             lengths.at(0), lengths.at(0.5), lengths.at(0.95), lengths.at(1))});
  if (dataset.num_too_long > 0) table.add_row({"too long", too_long_text(o, dataset)});
  if (num_marked_out(dataset) + num_left_out(dataset) > 0) {
    table.add_row({"marked", fmt::format("answers not trained on {}, examples left out {}",
                                         num_marked_out(dataset), num_left_out(dataset))});
  }
  if (dataset.faults.count > 0) table.add_row({"faults", std::to_string(dataset.faults.count)});
  fmt::print("{}\n{}", table.text(),
             histogram_text(length_histogram(lengths), has_pairs ? "answers" : "examples"));
}

// An example, or both answers of a pair.
std::vector<std::pair<std::string, data::Example>> named_parts(const data::Examples& examples,
                                                               size_t i) {
  if (!examples.has_pairs()) return {{fmt::format("example {}", i + 1), examples[i]}};
  data::ExamplePair pair = examples.pair(i);
  return {{fmt::format("pair {}, chosen", i + 1), std::move(pair.chosen)},
          {fmt::format("pair {}, rejected", i + 1), std::move(pair.rejected)}};
}

void print_examples(const DataOptions& o, const data::Dataset& dataset, const TextStack& text) {
  for (const size_t i :
       evenly_spaced_indices(dataset.examples.size(), static_cast<size_t>(o.show))) {
    for (const auto& [name, example] : named_parts(dataset.examples, i)) {
      fmt::print("\n{}, {} tokens, {} trained (in {}{}):\n{}\n", name, example.tokens.size() + 1,
                 example.num_trained, kOpen, kClose,
                 report::printable_lines(shortened(decode_bracketed(example, text.tokenizer()))));
    }
  }
}

boost::json::object quantiles_json(const Lengths& lengths) {
  return {{"min", lengths.at(0)},
          {"median", lengths.at(0.5)},
          {"p95", lengths.at(0.95)},
          {"max", lengths.at(1)}};
}

boost::json::array histogram_json(const std::vector<Bin>& bins) {
  boost::json::array list;
  for (const Bin& bin : bins) list.push_back({bin.first, bin.last, bin.count});
  return list;
}

boost::json::array examples_json(const DataOptions& o, const data::Dataset& dataset,
                                 const TextStack& text) {
  boost::json::array list;
  for (const size_t i :
       evenly_spaced_indices(dataset.examples.size(), static_cast<size_t>(o.show))) {
    boost::json::array parts;
    for (const auto& [name, example] : named_parts(dataset.examples, i))
      parts.push_back(boost::json::value(decode_bracketed(example, text.tokenizer())));
    list.push_back(dataset.examples.has_pairs() ? boost::json::value(parts) : parts.front());
  }
  return list;
}

boost::json::array first_faults_json(const data::Dataset& dataset) {
  boost::json::array list;
  for (const std::string& fault : dataset.faults.first) list.push_back(boost::json::value(fault));
  return list;
}

boost::json::object left_out_pairs_json(const data::Dataset& dataset) {
  int64_t equal = 0, duplicates = 0, ties = 0;
  for (const data::DataFile& file : dataset.files) {
    equal += file.equal_sides.count;
    duplicates += file.duplicates.count;
    ties += file.ties.count;
  }
  return {{"equal_answers", equal}, {"duplicates", duplicates}, {"equal_scores", ties}};
}

void print_json(const DataOptions& o, const data::Dataset& dataset, const Lengths& lengths,
                const TextStack& text) {
  boost::json::object out;
  out[dataset.examples.has_pairs() ? "pairs" : "examples"] = dataset.examples.size();
  out["tokens"] = num_tokens(dataset, lengths);
  out["trained_tokens"] = dataset.num_trained;
  out["too_long"] = dataset.num_too_long;
  if (!lengths.sorted.empty()) out["length"] = quantiles_json(lengths);
  out["histogram"] = histogram_json(length_histogram(lengths));
  out["shown"] = examples_json(o, dataset, text);
  out["conversations"] = conversations_json(
      o, dataset, evenly_spaced_indices(dataset.examples.size(), static_cast<size_t>(o.show)),
      text);
  if (o.loss.of_pairs()) out["left_out_pairs"] = left_out_pairs_json(dataset);
  out["marked_out_answers"] = num_marked_out(dataset);
  out["marked_out"] = num_left_out(dataset);
  out["faults"] = dataset.faults.count;
  out["first_faults"] = first_faults_json(dataset);
  fmt::print("{}\n", boost::json::serialize(out));
}

}  // namespace

int run_data(const DataOptions& o) {
  check_options(o);
  const bool of_rewards = !o.reward.reward.empty();
  if (of_rewards && (o.loss.of_pairs() || o.diff > 0)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--reward and {}: records are prompts, or have answers; give one",
                            o.diff > 0 ? "--diff" : "--loss " + o.loss.loss));
  }
  const std::vector<data::Source> sources = data::find_sources("data", o.data, data::Weights::kMay);
  const ModelPath path = find_model(o.model);
  const ModelTexts base = open_texts(path.model);
  const TextStack text(texts_with_adapter(base, path.adapter, o.chat), o.chat);
  const std::string choice = template_choice_line(base, path.adapter, o.chat);
  if (!choice.empty()) fmt::print(stderr, "{}\n", choice);
  const data::Dataset dataset = read_examples("data", sources, text,
                                              {.train_on = o.train_on,
                                               .max_length = o.max_length,
                                               .fields = o.fields,
                                               .looks_only = true,
                                               .pairs = o.loss.of_pairs(),
                                               .prompts = of_rewards});
  const Lengths lengths = sorted_lengths(dataset);
  if (o.diff > 0) {
    print_diff(o, dataset.files, text);
  } else if (of_rewards) {
    print_rewards(o, dataset,
                  evenly_spaced_indices(dataset.examples.size(), static_cast<size_t>(o.show)),
                  text);
  } else if (o.json) {
    print_json(o, dataset, lengths, text);
  } else if (!dataset.examples.empty()) {
    print_summary(o, dataset, lengths);
    print_examples(o, dataset, text);
  } else {
    fmt::print("no examples\n");
  }
  if (dataset.faults.count > 0) fmt::print(stderr, "{}\n", dataset.faults.text());
  return dataset.faults.count > 0 ? 2 : 0;
}

}  // namespace strata::apps
