// SPDX-License-Identifier: Apache-2.0
// Requests between two audit lines (--audit-sync): nothing is done before a line that says that it
// begins is on the disk (its status is 0, its object the path), and nothing is answered before one
// with the answer is, which names the first ("begun"). Where the first cannot be written, 503.
#pragma once
#include <functional>
#include <string_view>

#include "server/audit.h"
#include "server/http/router.h"
#include "server/http/server.h"

namespace strata::server {

// Whether it hands out weights: an archive, signed URLs, or a file by one.
bool hands_out_weights(std::string_view route);
// Whether --audit-sync holds for it.
bool is_audited(Effect effect, std::string_view route);

AuditLine line_of(const Exchange& exchange);

// `post` runs a task on the I/O thread. `log` outlives the handler's requests.
Handler audited(Handler handler, AuditLog& log,
                std::function<void(std::function<void()> task)> post);

}  // namespace strata::server
