// SPDX-License-Identifier: Apache-2.0
// The tables of the state store and the way from each older version to the newest one.
#pragma once
#include <string>

#include "server/store/state/sql.h"

namespace strata::server {

constexpr int64_t kSchemaVersion = 6;

// The database's; 0 of a new one, which gets the table that tells it.
int64_t read_schema_version(Sql& sql);

// Brings the database to kSchemaVersion in one transaction; a newer one is refused, untouched.
void migrate(Sql& sql);

// Whether the table that tells the version is a server's: only then may it be read.
bool has_valid_meta_table(Sql& sqlite);

// How the schema of a SQLite database of this version differs from what migrate() makes, or "": a
// trigger, a view or an expression of somebody else's would run with the server's statements.
std::string find_schema_difference(Sql& sqlite, int64_t version);

}  // namespace strata::server
