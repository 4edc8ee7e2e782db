// SPDX-License-Identifier: Apache-2.0
#include "backend/thread_comm.h"

#include <exception>
#include <string>

#include "base/check.h"
#include "base/trace.h"

namespace strata {

void run_ranks(int num_ranks, FunctionRef<void(Comm& comm)> body) {
  CHECK(num_ranks >= 1, num_ranks);
  Exchange exchange, breaking_exchange;
  if (num_ranks == 1) {
    ThreadComm comm(exchange, 0, 1);
    return body(comm);
  }
  run_threads(
      exchange, num_ranks,
      [&](int rank) {
        name_thread("rank " + std::to_string(rank));
        ThreadComm breaking(breaking_exchange, rank, num_ranks);
        ThreadComm comm(exchange, rank, num_ranks, &breaking);
        body(comm);
      },
      // Who started them sees it.
      [&](const std::exception_ptr& failure) { breaking_exchange.announce_failure(failure); });
}

}  // namespace strata
