// SPDX-License-Identifier: Apache-2.0
#include "backend/thread_comm.h"

#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "backend/thread_exchange.h"
#include "base/check.h"
#include "base/trace.h"

namespace strata {

void run_ranks(int num_ranks, FunctionRef<void(Comm& comm)> body) {
  CHECK(num_ranks >= 1, num_ranks);
  Exchange exchange;
  if (num_ranks == 1) {
    ThreadComm comm(exchange, 0, 1);
    return body(comm);
  }
  const auto run = [&](int rank) {
    name_thread("rank " + std::to_string(rank));
    ThreadComm comm(exchange, rank, num_ranks);
    try {
      body(comm);
    } catch (...) {
      exchange.fail(std::current_exception());
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < num_ranks; ++rank) threads.emplace_back(run, rank);
  }
  if (const std::exception_ptr failure = exchange.failure()) std::rethrow_exception(failure);
}

}  // namespace strata
