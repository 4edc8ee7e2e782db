// SPDX-License-Identifier: Apache-2.0
#include "server/http/refusal.h"

#include <fmt/args.h>
#include <fmt/format.h>

namespace strata::server {

std::string refusal_text(const Refusal& row, RefusalValues values) {
  fmt::dynamic_format_arg_store<fmt::format_context> args;
  for (const RefusalValue& value : values)
    std::visit([&](const auto& of) { args.push_back(of); }, value);
  return fmt::vformat(row.text, args);
}

Response refuse(const Refusal& row, RefusalValues values) {
  return with_retry_after(error_response(row.status, refusal_text(row, values)), row.retry_seconds);
}

std::optional<std::string> admit_use(Charge& charge, Use use, int64_t amount, const Refusal& row,
                                     int64_t spare) {
  if (charge.hold(use, amount, spare)) return std::nullopt;
  const SharedLimit& limit = charge.limit(use);
  return fmt::format(fmt::runtime(row.text), fmt::arg("wanted", amount),
                     fmt::arg("held", charge.held_by_tenant(use) - charge.held(use)),
                     fmt::arg("all", limit.used()), fmt::arg("limit", limit.limit()));
}

std::optional<Response> admit(Charge& charge, Use use, int64_t amount, const Refusal& row,
                              int64_t spare) {
  const std::optional<std::string> text = admit_use(charge, use, amount, row, spare);
  if (!text) return std::nullopt;
  return with_retry_after(error_response(row.status, *text), row.retry_seconds);
}

}  // namespace strata::server
