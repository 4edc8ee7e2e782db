// SPDX-License-Identifier: Apache-2.0
#include "text/parsed_budget.h"

#include <fmt/format.h>

#include <utility>

#include "base/busy.h"

namespace strata::text {
namespace {

constexpr int64_t kStep = 1 << 20;

}  // namespace

ParsedBudget::ParsedBudget(const Charge& request, std::string where)
    : where_(std::move(where)), body_(request.held(Use::kBody)), parsed_(request.another()) {}

void ParsedBudget::resize_hold(size_t bytes) {
  const int64_t wanted = static_cast<int64_t>(bytes) / kStep * kStep;
  if (wanted == parsed_.held(Use::kBody) || parsed_.hold(Use::kBody, wanted)) return;
  if (body_ + wanted > parsed_.limit(Use::kBody).most()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: the body takes more than {} bytes when parsed, and there is no "
                            "space for that (--max-body-bytes); send less at once",
                            where_, wanted));
  }
  throw Busy(
      fmt::format("{}: bodies of this tenant are being read, and there is no space for {} "
                  "bytes that this one takes when parsed (--max-body-bytes); send it again "
                  "when those have been answered",
                  where_, wanted));
}

}  // namespace strata::text
