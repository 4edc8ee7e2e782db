// SPDX-License-Identifier: Apache-2.0
// Refusal: a row of what the server says no to for now: where on its way a request is told so,
// which option sets the limit and what the client sees. Clients send the request again, after
// Retry-After. Each floor has its rows (http/refusals.h, tinker/refusals.h); all of them are the
// table of docs/refusals.md.
// admit() is where what a tenant may hold is told apart from what it may not.
//   if (auto refused = admit(charge, Use::kBody, bytes, kNoSpaceForBody)) return refused;
#pragma once
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "base/account.h"
#include "server/http/message.h"

namespace strata::server {

// On a request's way, from its connection to the last byte of its answer.
enum class Stage { kConnection, kHeader, kBody, kAdmission, kQueue, kPoll, kAnswer, kDownload };

struct Refusal {
  Stage stage;
  int status;               // 429: the tenant has as much as it may; 503: the server has
  std::string_view option;  // what sets the limit; empty: no option does
  // What the client reads, as fmt has it: `{}` is told with the refusal; admit() knows {wanted},
  // {held} by the tenant's others, {all} that is held and the {limit}.
  std::string_view text;
  int other_status = 0;  // what else it may be; 0: nothing
  int retry_seconds = 1;
};

// What stands for a text's `{}`, in their order.
using RefusalValue = std::variant<int64_t, uint64_t, double, std::string_view>;
using RefusalValues = std::initializer_list<RefusalValue>;
std::string refusal_text(const Refusal& row, RefusalValues values);

// The row's answer, with Retry-After.
Response refuse(const Refusal& row, RefusalValues values = {});

// From now on the charge holds `amount` for this use (Charge::hold()); or the row's text with the
// numbers of that, or its answer.
std::optional<std::string> admit_use(Charge& charge, Use use, int64_t amount, const Refusal& row,
                                     int64_t spare = 0);
std::optional<Response> admit(Charge& charge, Use use, int64_t amount, const Refusal& row,
                              int64_t spare = 0);

// The row with its other status.
inline Refusal with_other_status(Refusal row) {
  row.status = row.other_status;
  return row;
}

}  // namespace strata::server
