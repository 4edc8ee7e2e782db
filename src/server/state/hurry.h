// SPDX-License-Identifier: Apache-2.0
// What a server's end does to its waits for a database elsewhere.
#pragma once
#include "server/state/sql.h"

namespace strata::server {

// Any thread: from now on a statement of `sql` has two seconds at most, one that is under way too,
// and a database that was lost is not looked for. Nothing changes for a database in a file.
void hurry(Sql& sql);

}  // namespace strata::server
