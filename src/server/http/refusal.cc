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

}  // namespace strata::server
