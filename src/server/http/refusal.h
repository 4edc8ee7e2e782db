// SPDX-License-Identifier: Apache-2.0
// Refusal: a row of what the server says no to for now: where on its way a request is told so,
// which option sets the limit and what the client sees. Clients send the request again, after
// Retry-After. Each floor has its rows (http/refusals.h, tinker/refusals.h); all of them are the
// table of docs/refusals.md.
//   return refuse(kTooManyPolls, {waiting, all, limit});
#pragma once
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <variant>

#include "server/http/message.h"

namespace strata::server {

// On a request's way, from its connection to the last byte of its answer.
enum class Stage { kConnection, kHeader, kBody, kAdmission, kQueue, kPoll, kAnswer, kDownload };

struct Refusal {
  Stage stage;
  int status;               // 429: the tenant has as much as it may; 503: the server has
  std::string_view option;  // what sets the limit; empty: no option does
  std::string_view text;    // as fmt has it, `{}` for what is known when it is said
  int other_status = 0;     // what else it may be; 0: nothing
  int retry_seconds = 1;
};

// What stands for a text's `{}`, in their order.
using RefusalValue = std::variant<int64_t, uint64_t, double, std::string_view>;
using RefusalValues = std::initializer_list<RefusalValue>;
std::string refusal_text(const Refusal& row, RefusalValues values);

// The row's answer, with Retry-After.
Response refuse(const Refusal& row, RefusalValues values = {});

// The row with its other status.
inline Refusal with_other_status(Refusal row) {
  row.status = row.other_status;
  return row;
}

}  // namespace strata::server
