// SPDX-License-Identifier: Apache-2.0
#include "setup/example_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>

#include "base/log.h"
#include "base/say.h"
#include "report/progress.h"

namespace strata::apps {
namespace {

// Bytes of all files together; 0 where that is not known before they are read.
int64_t known_file_bytes(const std::vector<data::Source>& sources) {
  int64_t bytes = 0;
  for (const data::Source& source : sources) {
    std::error_code fault;
    if (source.path.ends_with(".gz") || source.path.ends_with(".zst")) return 0;
    const auto size = std::filesystem::file_size(source.path, fault);
    if (fault) return 0;
    bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

// Warns of answers that are left out, and of templates that write the date.
void warn_of_answers(const data::DataFile& file) {
  if (file.not_found.count > 0) {
    log(LogLevel::kWarning, fmt::format("{} answers are not trained on:\n{}", file.not_found.count,
                                        fmt::join(file.not_found.first, "\n")));
  }
  if (file.has_read_clock) {
    log(LogLevel::kWarning,
        fmt::format(
            "{}: the chat template writes today's date into the data, and another day's run "
            "trains on other tokens; --vars '{{\"strftime_now\": \"2026-01-31\"}}' fixes it",
            file.file->shown()));
  }
}

void print_dataset_notes(const data::Dataset& dataset, const data::ReadOptions& options) {
  for (const data::DataFile& file : dataset.files) {
    for (const std::string& text :
         {data::describe_format(file), data::marked_out_text(file), data::left_out_pairs_text(file),
          data::overlong_text(file, options)}) {
      if (!text.empty()) say(text + "\n");
    }
    warn_of_answers(file);
  }
  if (dataset.ignored_fields.empty()) return;
  log(LogLevel::kWarning,
      fmt::format("{}: fields that are not used: {}", dataset.files.front().file->shown(),
                  fmt::join(dataset.ignored_fields, ", ")));
}

}  // namespace

data::Dataset read_examples(const std::string& option, const std::vector<data::Source>& sources,
                            const TextStack& stack, const ReadChoice& choice) {
  const auto render = [&](const text::ChatRequest& request) {
    return stack.render_marked(request);
  };
  int64_t num_doubled_starts = 0;
  const data::ExampleContext context{
      .tokenizer = stack.tokenizer(),
      .end_tokens = stack.end_tokens(),
      .render = render,
      .train_on = choice.train_on == "all" ? data::TrainOn::kAll : data::TrainOn::kLast,
      .has_template = stack.has_template(),
      .form = stack.conversation_form(),
      .num_doubled_starts = &num_doubled_starts};
  const data::ReadOptions options = {.max_length = choice.max_length,
                                     .overlong = data::parse_overlong(choice.overlong),
                                     .fields = data::parse_field_names(choice.fields),
                                     .looks_only = choice.looks_only,
                                     .pairs = choice.pairs,
                                     .prompts = choice.prompts};
  report::Progress progress(
      {.label = option, .total = known_file_bytes(sources), .quiet_seconds = 2});
  data::Dataset dataset = data::read_dataset(sources, context, options, &progress);
  progress.finish();
  print_dataset_notes(dataset, options);
  if (num_doubled_starts > 0) {
    log(LogLevel::kWarning,
        fmt::format("--{}: {} text{} with what the tokenizer adds; the model reads that once",
                    option, num_doubled_starts, num_doubled_starts == 1 ? " begins" : "s begin"));
  }
  return dataset;
}

}  // namespace strata::apps
