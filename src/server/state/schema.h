// The tables of the state store and the way from each older version to the newest one.
#pragma once
#include "server/state/sql.h"

namespace strata::server {

constexpr int64_t kSchemaVersion = 3;

// Brings the database to kSchemaVersion in one transaction; a newer one is refused, untouched.
void migrate(Sql& sql);

}  // namespace strata::server
