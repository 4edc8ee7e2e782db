// SPDX-License-Identifier: Apache-2.0
// Ranks as processes (--ranks): mpirun, srun or an operator of Kubernetes starts the same command
// once for each. Rank 0 reads files of data, plans, prints and writes; the others get from it what
// they need. Each reads its own copy of the base model, and all have to be alike.
#pragma once
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "backend/mpi_comm.h"
#include "backend/process_ranks.h"
#include "base/function_ref.h"
#include "base/option_table.h"
#include "schedule/parallel_layout.h"
#include "setup/stages.h"

namespace strata::apps {

// Runs body as the rank that this process is among as many as --ranks names, and returns what it
// returned. Where one fails all end with the exit code of its Error, which the rank that speaks for
// them prints. Of ranks that share a machine's cores each takes its part of them, as `bind` says.
// Once in a process.
using RankBody = FunctionRef<int(Comm& comm, const schedule::ParallelLayout& layout)>;
int run_as_rank(const StageOptions& stages, RankBody body, const MpiOptions& options = {});

// An Error for a model that does not divide so, by its rows of parameters.
void check_layout(const schedule::ParallelLayout& layout, const model::ModelConfig& config);
// An Error for an optimizer that steps whole matrices, of which tensor ranks have rows.
void check_optimizer_of_ranks(const schedule::ParallelLayout& layout, const std::string& optimizer);

// An Error where mpirun has started several of this command, which without --ranks know nothing of
// each other and would write the same files.
void check_started_alone();

// How these processes divide a model: as the options say and the layout adds. --stages are threads
// of each, which are neighbours in the pipeline.
StageOptions stages_with_layout(const StageOptions& given, const schedule::ParallelLayout& layout);
// Which ranks each of them has; of threads one process has them all.
ProcessRanks process_ranks(const StageOptions& stages);

// Where all parameters take gradients: an Error for a schedule whose weight gradients come behind
// its backwards on several data ranks.
void check_deferred_weight_grads(const engine::PipelinePlan& plan, const StageOptions& options);

// An Error for a --memory of ranks that has files: it is of each process, which has all in memory.
void check_memory_of_ranks(const std::string& memory, const std::string& offload);

// What ranks must have in common: {what, value} in an order that is the same everywhere.
using RankFacts = std::vector<std::pair<std::string, std::string>>;
// The program, the CPU path, the base model by its content and its dtype, and every option of the
// table but those that say where something of one machine is.
RankFacts collect_rank_facts(const LoadSpec& spec, const OptionTable& table);
// The facts of a run without a base model.
RankFacts collect_rank_facts(const OptionTable& table);
// Adds a schedule in a file to the facts.
void add_schedule_hash(const StageOptions& stages, RankFacts& facts);
// An Error that names both ranks where one differs from rank 0. Collective.
void check_ranks_alike(Comm& comm, const RankFacts& facts);

// Every rank's text, on rank 0; elsewhere nothing. Collective.
std::vector<std::string> gather_texts(Comm& comm, const std::string& own);

// Rank 0's value, on every rank. Collective, and so is what follows.
void broadcast_bytes(Comm& comm, void* data, int64_t bytes);
void broadcast(Comm& comm, std::string& text);
template <typename T>
void broadcast(Comm& comm, T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  broadcast_bytes(comm, &value, sizeof(value));
}
template <typename T>
void broadcast(Comm& comm, std::vector<T>& values) {
  auto count = std::ssize(values);
  broadcast(comm, count);
  values.resize(static_cast<size_t>(count));
  broadcast_bytes(comm, values.data(), count * static_cast<int64_t>(sizeof(T)));
}

}  // namespace strata::apps
