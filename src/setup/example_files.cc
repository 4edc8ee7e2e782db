// SPDX-License-Identifier: Apache-2.0
#include "setup/example_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>

#include "base/log.h"
#include "report/progress.h"

namespace strata::apps {
namespace {

// 0 where it is not known before.
int64_t count_file_bytes_if_known(const std::vector<data::Source>& sources) {
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

void print_dataset_notes(const data::Dataset& dataset, const data::ReadOptions& options) {
  for (const data::DataFile& file : dataset.files) {
    for (const std::string& text :
         {data::describe_format(file), data::overlong_text(file, options)}) {
      if (!text.empty()) fmt::print(stderr, "{}\n", text);
    }
  }
  if (dataset.ignored_fields.empty()) return;
  log(LogLevel::kWarning,
      fmt::format("{}: fields that are not used: {}", dataset.files.front().file->shown(),
                  fmt::join(dataset.ignored_fields, ", ")));
}

}  // namespace

data::Dataset read_examples(const std::string& option, const std::vector<data::Source>& sources,
                            const TextStack& text, const ReadChoice& choice) {
  const auto render = [&](const std::string& messages, const std::string& tools, bool with_prompt) {
    return text.render(
        {.messages = messages, .tools = tools, .add_generation_prompt = with_prompt});
  };
  const data::ExampleContext context{
      .tokenizer = text.tokenizer(),
      .end_tokens = text.end_tokens(),
      .render = render,
      .train_on = choice.train_on == "all" ? data::TrainOn::kAll : data::TrainOn::kLast,
      .has_template = text.has_template()};
  const data::ReadOptions options = {.max_length = choice.max_length,
                                     .overlong = data::parse_overlong(choice.overlong),
                                     .looks_only = choice.looks_only};
  report::Progress progress(
      {.label = option, .total = count_file_bytes_if_known(sources), .quiet_seconds = 2});
  data::Dataset dataset = data::read_dataset(sources, context, options, &progress);
  progress.finish();
  print_dataset_notes(dataset, options);
  return dataset;
}

}  // namespace strata::apps
