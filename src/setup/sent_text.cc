// SPDX-License-Identifier: Apache-2.0
#include "setup/sent_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/check.h"
#include "report/format.h"
#include "report/table.h"

namespace strata::apps {

using engine::kSentNames;
using engine::SentBytes;

namespace {

// "embedding_gradients" as "embedding gradients".
std::string heading_of(std::string_view name) {
  std::string heading(name);
  std::ranges::replace(heading, '_', ' ');
  return heading;
}

}  // namespace

std::string data_ranks_text(const engine::PipelinePlan& plan) {
  std::string text =
      fmt::format("each micro-batch is one of {} ranks', in turn; below is what one has and does",
                  plan.num_dealing());
  if (plan.weight_sharers > 1)
    text += fmt::format(", its part of one copy of the weights that {} share", plan.weight_sharers);
  return text;
}

std::string expert_ranks_text(const engine::PipelinePlan& plan) {
  return fmt::format(
      "those of every layer are dealt to {} ranks{}; below is what the first one has and does, and "
      "sends at most, whatever routers choose",
      plan.expert, plan.data == 1 ? "" : fmt::format(", in {} copies", plan.data));
}

std::string sent_table(const std::string& title, std::span<const SentBytes> of_ranks) {
  std::vector<report::Column> columns = {{title}};
  for (const std::string_view name : kSentNames) {
    columns.push_back({heading_of(name), report::Align::kRight});
  }
  report::Table table(columns);
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    std::vector<std::string> row = {fmt::format("rank {}", rank)};
    for (const int64_t bytes : of_ranks[rank].by_kind)
      row.push_back(bytes == 0 ? "" : report::format_bytes(bytes));
    table.add_row(row);
  }
  return table.text();
}

std::string sent_json(std::span<const SentBytes> of_ranks) {
  SentBytes all;
  for (const SentBytes& sent : of_ranks) all += sent;
  std::string text;
  for (size_t i = 0; i < kSentNames.size(); ++i)
    text += fmt::format("{}\"{}\":{}", i == 0 ? "" : ",", kSentNames[i], all.by_kind[i]);
  return "{" + text + "}";
}

std::string sent_by_rank_json(std::span<const SentBytes> of_ranks,
                              std::span<const SentBytes> planned,
                              std::span<const std::optional<RankMemory>> memory) {
  CHECK(planned.empty() || of_ranks.size() == planned.size(), of_ranks.size(), planned.size());
  CHECK(memory.empty() || memory.size() == of_ranks.size(), memory.size(), of_ranks.size());
  std::string text;
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    text += fmt::format("{}{{\"rank\":{},\"sent_bytes\":{}", rank == 0 ? "" : ",", rank,
                        sent_json(of_ranks.subspan(rank, 1)));
    if (!planned.empty())
      text += fmt::format(",\"planned_sent_bytes\":{}", sent_json(planned.subspan(rank, 1)));
    if (!memory.empty() && memory[rank]) {
      text += fmt::format(",\"peak_bytes\":{},\"planned_bytes\":{}", memory[rank]->peak,
                          memory[rank]->planned);
    }
    text += '}';
  }
  return "[" + text + "]";
}

std::vector<SentBytes> gather_sent(Comm& comm, const SentBytes& own) {
  std::vector<double> counts(own.by_kind.begin(), own.by_kind.end()), all;
  comm.all_gather(counts, all);  // whole numbers, which a double holds
  std::vector<SentBytes> of_ranks(static_cast<size_t>(comm.size()));
  for (size_t i = 0; i < all.size(); ++i)
    of_ranks[i / counts.size()].by_kind[i % counts.size()] = static_cast<int64_t>(all[i]);
  return of_ranks;
}

}  // namespace strata::apps
