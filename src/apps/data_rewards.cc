// SPDX-License-Identifier: Apache-2.0
#include "apps/data_rewards.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>

#include "report/text_width.h"
#include "reward/reward.h"
#include "text/json_field.h"
#include "trainer/rollouts.h"

namespace strata::apps {
namespace {

namespace json = boost::json;

std::string completion_of(const std::string& record) {
  const json::object object = text::parse_json_object(record, "the record");
  const json::value* completion = object.if_contains("completion");
  if (completion == nullptr || !completion->is_string()) return {};
  return std::string(completion->get_string());
}

// In the order of the records.
std::vector<reward::Rated> rate(const DataOptions& options, const data::Dataset& prompts,
                                const std::vector<size_t>& shown, const TextStack& text) {
  check_reward(options.reward, text, prompts);
  reward::Reward reward(options.reward, /*log=*/"", {text.tokenizer(), text.end_tokens().stop});
  for (const size_t i : shown) {
    const std::string& record = data::record_of(prompts, i);
    reward.submit(i, record, completion_of(record));
  }
  while (!reward.is_idle()) reward.run(/*seconds=*/1);
  std::vector<reward::Rated> rated = reward.take_rated();
  std::ranges::sort(rated, {}, &reward::Rated::id);
  return rated;
}

}  // namespace

void print_rewards(const DataOptions& options, const data::Dataset& prompts,
                   const std::vector<size_t>& shown, const TextStack& text) {
  json::array list;
  if (!options.json) fmt::print("{} prompts\n", prompts.examples.size());
  for (const reward::Rated& rated : rate(options, prompts, shown, text)) {
    const std::string& record = data::record_of(prompts, rated.id);
    const std::string line = reward::make_line(record, completion_of(record));
    if (options.json) {
      list.push_back({{"line", json::parse(line)},
                      {"reward", rated.value ? json::value(*rated.value) : json::value()},
                      {"fault", rated.fault}});
      continue;
    }
    fmt::print("\nprompt {}: {}\n{}\n", rated.id + 1, report::printable_lines(line),
               rated.value ? fmt::format("reward {}", *rated.value)
                           : "no reward: " + report::printable_lines(rated.fault));
  }
  if (!options.json) return;
  fmt::print("{}\n", json::serialize(json::object{{"prompts", prompts.examples.size()},
                                                  {"rewards", std::move(list)}}));
}

}  // namespace strata::apps
