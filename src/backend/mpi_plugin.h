// SPDX-License-Identifier: Apache-2.0
// The MPI plugin, loaded at run time (backend/mpi_table.h says what it gives).
#pragma once
#include <string>

#include "backend/mpi_table.h"

namespace strata {

// Stays loaded. Error{kUnsupported} that says what to install where it, or MPI, cannot be loaded.
const MpiTable& load_mpi_plugin(const std::string& path);

}  // namespace strata
