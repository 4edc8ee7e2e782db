// SPDX-License-Identifier: Apache-2.0
#include "schedule/parallel_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>

#include "base/error.h"

namespace strata::schedule {
namespace {

constexpr int kMostParts = 32768;  // of four kinds as many ranks as 64 bits count

struct Kind {
  const char* name;
  int ParallelLayout::* parts;
};
// The first varies fastest from rank to rank.
constexpr Kind kKinds[] = {{"expert", &ParallelLayout::expert},
                           {"data", &ParallelLayout::data},
                           {"tensor", &ParallelLayout::tensor},
                           {"pipeline", &ParallelLayout::pipeline}};

[[noreturn]] void refuse(std::string_view part, std::string_view text, const std::string& why) {
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("--ranks {}: got '{}', {}; want pipeline=N, data=N, expert=N or tensor=N, "
                  "with commas",
                  text, part, why));
}

int ParallelLayout::* find_parts(std::string_view name) {
  for (const Kind& kind : kKinds) {
    if (name == kind.name) return kind.parts;
  }
  return nullptr;
}

std::optional<int> parse_num_parts(std::string_view text) {
  int number = 0;
  const char* last = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), last, number);
  if (error != std::errc() || stop != last || number < 1 || number > kMostParts) return {};
  return number;
}

// "data=2", into `layout`.
void parse_part_into(std::string_view part, std::string_view text,
                     std::set<std::string_view>& named, ParallelLayout& layout) {
  const size_t equals = std::min(part.find('='), part.size());
  const std::string_view name = part.substr(0, equals);
  const std::string_view number = part.substr(std::min(equals + 1, part.size()));
  int ParallelLayout::* parts = find_parts(name);
  if (parts == nullptr) refuse(part, text, "which names no kind");
  if (!named.insert(name).second) refuse(part, text, "which is named twice");
  const std::optional<int> num_parts = parse_num_parts(number);
  if (!num_parts) refuse(part, text, fmt::format("whose number is none from 1 to {}", kMostParts));
  layout.*parts = *num_parts;
}

}  // namespace

int64_t ParallelLayout::num_ranks() const {
  int64_t product = 1;
  for (const Kind& kind : kKinds) product *= this->*kind.parts;
  return product;
}

ParallelLayout ParallelLayout::place_of(int rank) const {
  ParallelLayout place;
  for (const Kind& kind : kKinds) {
    place.*kind.parts = rank % this->*kind.parts;
    rank /= this->*kind.parts;
  }
  return place;
}

std::string ParallelLayout::text() const {
  return fmt::format("pipeline={}, data={}, expert={}, tensor={}", pipeline, data, expert, tensor);
}

ParallelLayout parse_layout(std::string_view text) {
  ParallelLayout layout;
  std::set<std::string_view> named;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    parse_part_into(text.substr(begin, end - begin), text, named, layout);
    begin = end + 1;
  }
  return layout;
}

void check_num_ranks(const ParallelLayout& layout, int num_ranks) {
  if (layout.num_ranks() == num_ranks) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("--ranks: {} are {} ranks, and {} started; start that many (mpirun -n {})",
                  layout.text(), layout.num_ranks(),
                  num_ranks == 1 ? "1 has" : fmt::format("{} have", num_ranks),
                  layout.num_ranks()));
}

}  // namespace strata::schedule
