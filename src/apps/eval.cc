// SPDX-License-Identifier: Apache-2.0
#include "apps/eval.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "apps/options.h"
#include "backend/thread_comm.h"
#include "base/log.h"
#include "model/adapter/io.h"
#include "report/format.h"
#include "report/table.h"
#include "setup/adapter_texts.h"
#include "setup/example_files.h"
#include "setup/hub_cache.h"
#include "setup/pair_scoring.h"
#include "setup/scoring.h"
#include "setup/stages.h"
#include "text/json_reader.h"

namespace strata::apps {
namespace {

// The base, and each adapter.
struct Scored {
  std::string name;
  SlotScore score;
  PairScores pairs = {};  // instead, of preference pairs
};

LoadSpec read_eval_spec(const EvalOptions& o) {
  EngineSetup setup = o;
  setup.longest = o.max_length;
  LoadSpec spec = read_spec(setup);
  for (const std::string& adapter : o.adapters) {
    if (model::adapter_dir_has_mtp(spec.parsed.config, adapter))
      spec.mtp = model::UseMtp::kAlways;  // loaded whole
  }
  return spec;
}

std::vector<api::AdapterSlot> load_slots(engine::Runner& pipeline,
                                         const std::vector<std::string>& adapters) {
  std::vector<api::AdapterSlot> slots = {api::AdapterSlot::kBase};
  for (const std::string& adapter : adapters) slots.push_back(pipeline.load_adapter(adapter));
  return slots;
}

// With the base as the reference, where the loss has one.
void score_all_pairs(const EvalOptions& o, engine::Runner& pipeline,
                     std::span<const api::AdapterSlot> slots, const data::Dataset& dataset,
                     std::vector<Scored>& scored) {
  References references;
  if (o.loss.has_reference()) {
    add_references(pipeline, api::AdapterSlot::kBase, dataset.examples, o.micro_tokens, references,
                   [](int64_t) {});
  }
  const auto scores =
      score_pairs(pipeline, slots, dataset, o.micro_tokens, loss_of_pairs(o.loss), references);
  for (size_t i = 0; i < scores.size(); ++i) scored[i].pairs = scores[i];
}

// Loads the base and the adapters, and scores each of them on the data.
std::vector<Scored> score_models(const EvalOptions& o, const LoadSpec& spec,
                                 const data::Dataset& dataset) {
  const engine::RunPlan plan = {.pipeline = plan_stages(spec, {})};
  std::vector<Scored> scored = {{.name = "base", .score = {}}};
  for (const std::string& adapter : o.adapters) scored.push_back({.name = adapter, .score = {}});
  run_ranks(1, [&](Comm& comm) {
    const auto pipeline = load_runner(comm, plan, spec, {.pass_tokens = o.micro_tokens});
    check_tokens_in_vocabulary(dataset, pipeline->engine().config().vocab_size);
    const std::vector<api::AdapterSlot> slots = load_slots(*pipeline, o.adapters);
    if (o.loss.of_pairs()) return score_all_pairs(o, *pipeline, slots, dataset, scored);
    const auto scores = score_dataset(*pipeline, slots, dataset, o.micro_tokens, WantTop::kYes);
    for (size_t i = 0; i < scores.size(); ++i) scored[i].score = scores[i];
  });
  return scored;
}

int64_t num_examples(const data::Dataset& dataset, int file) {
  return file < 0 ? static_cast<int64_t>(dataset.examples.size())
                  : dataset.files[static_cast<size_t>(file)].count;
}

const Score& score_of(const Scored& scored, int file) {
  return file < 0 ? scored.score.total : scored.score.files[static_cast<size_t>(file)];
}

// -1: all of them together.
std::vector<int> file_indices_and_total(const data::Dataset& dataset) {
  std::vector<int> parts;
  for (size_t i = 0; i < dataset.files.size(); ++i) parts.push_back(static_cast<int>(i));
  if (parts.size() > 1) parts.push_back(-1);
  return parts;
}

std::string name_of(const data::Dataset& dataset, int file) {
  return file < 0 ? "all files" : dataset.files[static_cast<size_t>(file)].file->shown();
}

std::string part_title(const data::Dataset& dataset, int part, int64_t num_trained) {
  return fmt::format("{} ({} examples, {} trained tokens)", name_of(dataset, part),
                     num_examples(dataset, part),
                     report::format_count(static_cast<double>(num_trained)));
}

const PairScore& pairs_of(const Scored& scored, int file) {
  return file < 0 ? scored.pairs.total : scored.pairs.files[static_cast<size_t>(file)];
}

void print_pair_table(const data::Dataset& dataset, const std::vector<Scored>& all) {
  std::vector<report::Column> columns = {{"data"},
                                         {"model"},
                                         {"loss", report::Align::kRight},
                                         {"chosen", report::Align::kRight},
                                         {"rejected", report::Align::kRight},
                                         {"margin", report::Align::kRight},
                                         {"accuracy", report::Align::kRight}};
  const bool has_nll = all.front().pairs.total.num_nll_tokens > 0;
  if (has_nll) columns.push_back({"chosen nll", report::Align::kRight});
  report::Table table(columns);
  for (const int part : file_indices_and_total(dataset)) {
    for (const Scored& scored : all) {
      const PairScore& pairs = pairs_of(scored, part);
      if (pairs.num_pairs == 0) continue;
      const std::string title =
          fmt::format("{} ({} pairs)", name_of(dataset, part), pairs.num_pairs);
      std::vector<std::string> row = {&scored == &all.front() ? title : "",
                                      scored.name,
                                      fmt::format("{:.4f}", pairs.loss()),
                                      fmt::format("{:+.3f}", pairs.chosen()),
                                      fmt::format("{:+.3f}", pairs.rejected()),
                                      fmt::format("{:+.3f}", pairs.margin()),
                                      fmt::format("{:.1f} %", 100 * pairs.accuracy())};
      if (has_nll) row.push_back(fmt::format("{:.4f}", pairs.nll()));
      table.add_row(row);
    }
  }
  fmt::print("{}", table.text());
}

void print_table(const data::Dataset& dataset, const std::vector<Scored>& all) {
  report::Table table({{"data"},
                       {"model"},
                       {"loss", report::Align::kRight},
                       {"perplexity", report::Align::kRight},
                       {"accuracy", report::Align::kRight}});
  for (const int part : file_indices_and_total(dataset)) {
    for (const Scored& scored : all) {
      const Score& score = score_of(scored, part);
      if (score.num_trained == 0) continue;
      const bool is_base = &scored == &all.front();
      table.add_row({is_base ? part_title(dataset, part, score.num_trained) : "", scored.name,
                     fmt::format("{:.4f}", score.loss()),
                     fmt::format("{:.4g}", std::exp(score.loss())),
                     fmt::format("{:.1f} %", 100 * score.accuracy())});
    }
  }
  fmt::print("{}", table.text());
}

std::string result_json(const Scored& scored, const Score& score, bool is_base) {
  return fmt::format(R"({{"adapter":{},"loss":{},"perplexity":{},"accuracy":{}}})",
                     is_base ? "null" : text::json_quote(scored.name),
                     text::json_optional_number(score.loss()),
                     text::json_optional_number(std::exp(score.loss())), score.accuracy());
}

std::string pairs_json(const Scored& scored, const PairScore& pairs, bool is_base) {
  return fmt::format(
      R"({{"adapter":{},"loss":{},"rewards":{{"chosen":{},"rejected":{},)"
      R"("margin":{}}},"accuracy":{}{}}})",
      is_base ? "null" : text::json_quote(scored.name), text::json_optional_number(pairs.loss()),
      text::json_optional_number(pairs.chosen()), text::json_optional_number(pairs.rejected()),
      text::json_optional_number(pairs.margin()), pairs.accuracy(),
      pairs.num_nll_tokens == 0
          ? ""
          : fmt::format(R"(,"nll_loss":{})", text::json_optional_number(pairs.nll())));
}

std::string part_json(const data::Dataset& dataset, int part, const std::vector<Scored>& all) {
  std::vector<std::string> results;
  for (const Scored& scored : all) {
    const bool is_base = &scored == &all.front();
    if (dataset.examples.has_pairs()) {
      const PairScore& pairs = pairs_of(scored, part);
      if (pairs.num_pairs > 0) results.push_back(pairs_json(scored, pairs, is_base));
      continue;
    }
    const Score& score = score_of(scored, part);
    if (score.num_trained > 0) results.push_back(result_json(scored, score, is_base));
  }
  const std::string of =
      part < 0 ? R"("all":true)"
               : fmt::format(R"("file":{})", text::json_quote(name_of(dataset, part)));
  const std::string counts =
      dataset.examples.has_pairs()
          ? fmt::format(R"("pairs":{})", num_examples(dataset, part))
          : fmt::format(R"("examples":{},"trained_tokens":{})", num_examples(dataset, part),
                        score_of(all.front(), part).num_trained);
  return fmt::format(R"({{{},{},"results":[{}]}})", of, counts, fmt::join(results, ","));
}

void print_json(const EvalOptions& o, const data::Dataset& dataset,
                const std::vector<Scored>& all) {
  std::vector<std::string> parts;
  for (const int part : file_indices_and_total(dataset))
    parts.push_back(part_json(dataset, part, all));
  const std::string hub = hub_name_of_snapshot(o.model);
  fmt::print("{{\"model\":{},\"data\":[{}]}}\n", text::json_quote(hub.empty() ? o.model : hub),
             fmt::join(parts, ","));
}

// The adapter whose template and tokenizer the data goes through; empty: the base's. Several share
// what they are scored on.
std::string adapter_of_texts(const EvalOptions& o, const LoadSpec& spec) {
  std::string line;
  if (o.adapters.size() == 1) {
    line = template_choice_line(spec.texts, o.adapters.front(), o.chat);
  } else {
    const auto has_own = [&](const std::string& adapter) {
      return read_adapter_texts(spec.texts, adapter).has_own_template();
    };
    if (std::ranges::any_of(o.adapters, has_own))
      line =
          "of several adapters, some with their own chat template, all are scored with the base's";
  }
  if (!line.empty()) log(LogLevel::kWarning, line);
  return o.adapters.size() == 1 ? o.adapters.front() : "";
}

}  // namespace

int run_eval(const EvalOptions& o) {
  check_options(o);
  check_loss_choice(o.loss, o.overlong);
  check_device(o.device);
  const std::vector<data::Source> sources =
      data::find_sources("data", o.data, data::Weights::kNone);
  const LoadSpec spec = read_eval_spec(o);
  const TextStack text(texts_with_adapter(spec.texts, adapter_of_texts(o, spec), o.chat), o.chat);
  const data::Dataset dataset = read_examples("data", sources, text,
                                              {.train_on = o.train_on,
                                               .max_length = o.max_length,
                                               .overlong = o.overlong,
                                               .fields = o.fields,
                                               .pairs = o.loss.of_pairs()});
  const std::vector<Scored> scored = score_models(o, spec, dataset);
  if (o.json) {
    print_json(o, dataset, scored);
  } else {
    o.loss.of_pairs() ? print_pair_table(dataset, scored) : print_table(dataset, scored);
  }
  return 0;
}

}  // namespace strata::apps
