// SPDX-License-Identifier: Apache-2.0
// Ranks as processes that MPI started (mpirun, srun): MpiRanks is the part of this process in them,
// one rank (backend/mpi_link.h). MPI comes from a plugin, which is loaded here and nowhere else.
//   MpiRanks ranks(plugin);
//   ranks.run([](Comm& comm) { ... });
// One at a time in a process, and only once, since MPI starts only once.
#pragma once
#include <memory>
#include <string>

#include "backend/comm.h"
#include "base/function_ref.h"

namespace strata {

// The name of this machine, for messages; "unknown host" where the system does not say.
std::string host_name();

struct MpiOptions {
  int64_t chunk_bytes = int64_t{1} << 30;  // of a message, at once; at most 2 GiB - 1
  double silence = 10.0;                   // seconds after which a silent rank counts as dead
  // A silent rank is waited for, since who started the ranks sees to it that all end with one: it
  // was stopped, or its machine is slow. Comm::find_silent_rank() names it.
  bool waits_for_silent = false;
  // Then: seconds after which ranks that all wait for each other, a bug, end with a message.
  double deadlock = 60.0;
};

class MpiRanks {
 public:
  // Error{kUnsupported} where the plugin or MPI cannot be loaded: what to install.
  explicit MpiRanks(const std::string& plugin, const MpiOptions& options = {});
  // Waits for rank 0, whose message may still be on its way to its reader. Where a rank is dead it
  // ends the whole job.
  ~MpiRanks();
  MpiRanks(const MpiRanks&) = delete;
  MpiRanks& operator=(const MpiRanks&) = delete;

  [[nodiscard]] Comm& comm();
  // Calls body, as all ranks do, and waits until it has ended on each. Where it throws on one, the
  // others are stopped at their next receive, and all throw that Error; it names the rank where
  // that is another's, or one that was killed or fell silent.
  void run(FunctionRef<void(Comm& comm)> body);
  // Whether this rank speaks for all: whether all that are lower are dead.
  [[nodiscard]] bool speaks() const;

 private:
  struct Ends;
  std::unique_ptr<Ends> ends_;
};

}  // namespace strata
