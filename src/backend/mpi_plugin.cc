// SPDX-License-Identifier: Apache-2.0
#include "backend/mpi_plugin.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "base/error.h"

namespace strata {

const MpiTable& load_mpi_plugin(const std::string& path) {
  // RTLD_GLOBAL is for libmpi, whose own plugins look for its symbols there.
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("ranks need MPI: {}; install openmpi-bin, and build Strata where "
                            "libopenmpi-dev is installed",
                            ::dlerror()));
  }
  using Get = const MpiTable* (*)();
  const auto get = reinterpret_cast<Get>(::dlsym(library, kMpiTableSymbol));
  const MpiTable* table = get == nullptr ? nullptr : get();
  if (table == nullptr || table->version != kMpiTableVersion) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("ranks need MPI: {} belongs to another build of Strata", path));
  }
  return *table;
}

}  // namespace strata
