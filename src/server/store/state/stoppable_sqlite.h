// SPDX-License-Identifier: Apache-2.0
// SQLite for long statements of a program that a signal may stop: a copy of a database, or a check
// of all of it.
#pragma once
#include <memory>
#include <string>

#include "server/store/state/sql.h"

namespace strata::server {

// open_sqlite(), whose statements end with an Error soon after `stops` says so, which is asked now
// and then, on the same thread.
std::unique_ptr<Sql> open_stoppable_sqlite(const std::string& path, bool (*stops)());

}  // namespace strata::server
