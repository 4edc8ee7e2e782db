// SPDX-License-Identifier: Apache-2.0
#include "setup/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

#include "base/cores.h"
#include "base/env.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/say.h"
#include "data/input_file.h"
#include "model/weights/rank_division.h"
#include "schedule/generate.h"
#include "setup/backend.h"
#include "setup/exit_code.h"
#include "setup/model_identity.h"
#include "setup/version.h"

namespace strata::apps {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kTag = 0;
// So much is shared at once: what is on its way takes memory too.
constexpr int64_t kPiece = 1 << 20;

// What differs between machines, and rank 0 alone reads or writes.
constexpr std::array<std::string_view, 17> kOfOne = {
    "model",       "adapter", "data",    "eval",  "out",    "config",
    "save-config", "threads", "offload", "trace", "json",   "tensorboard",
    "report",      "request", "machine", "stats", "cluster"};

const char* const kProgram = "/proc/self/exe";

// Next to the program, or where packages have it.
std::string find_plugin() {
  constexpr const char* kName = "libstrata_mpi.so";
  const fs::path folder = fs::read_symlink(kProgram).parent_path();
  for (const fs::path& path : {folder / kName, folder / "../lib/strata" / kName}) {
    if (file_exists(path.string())) return path.string();
  }
  throw Error(ErrorCode::kUnsupported,
              fmt::format("--ranks: there is no {} next to the program in {}: install the package "
                          "strata-mpi; or libopenmpi-dev and openmpi-bin, and build Strata again",
                          kName, folder.string()));
}

void send_text(Comm& comm, int to, const std::string& text) {
  const auto size = std::ssize(text);
  comm.send_bytes(to, kTag, &size, sizeof(size));
  comm.send_bytes(to, kTag, text.data(), size);
}

std::string receive_text(Comm& comm, int from) {
  int64_t size = 0;
  comm.receive_bytes(from, kTag, &size, sizeof(size));
  std::string text(static_cast<size_t>(size), '\0');
  comm.receive_bytes(from, kTag, text.data(), size);
  return text;
}

// Neighbouring cores, as many as the rank has threads of all of them.
std::span<const int> cores_of_rank(std::span<const int> cores, int rank, int ranks) {
  const auto count = static_cast<int>(cores.size());
  int first = 0;
  for (int before = 0; before < rank; ++before) first += threads_of(before, ranks, count);
  return cores.subspan(static_cast<size_t>(first),
                       static_cast<size_t>(threads_of(rank, ranks, count)));
}

// Ranks that mpirun has bound to cores of their own stay there, and so do more ranks than cores.
void bind_to_own_cores(const Comm& comm) {
  const std::vector<int> cores = usable_cores_by_node();
  const int ranks = comm.ranks_here();
  if (ranks == 1 || std::ssize(cores) < ranks) return;
  if (bind_to_cores(cores_of_rank(cores, comm.rank_here(), ranks))) return;
  log(LogLevel::kWarning, "--bind auto: the system does not let a rank choose its cores");
}

bool any_stage_defers_weight_gradients(const engine::PipelinePlan& plan) {
  for (int stage = 0; stage < plan.num_stages(); ++stage) {
    if (plan.defers_weight_gradients(stage)) return true;
  }
  return false;
}

[[noreturn]] void refuse_difference(const std::string& what, const std::vector<std::string>& hosts,
                                    const std::string& own, int other, const std::string& theirs) {
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("--ranks: {}: rank 0 ({}) has {}, rank {} ({}) has {}; the ranks of a "
                  "run must be alike",
                  what, hosts.front(), own, other, hosts[static_cast<size_t>(other)], theirs));
}

}  // namespace

int run_as_rank(const StageOptions& stages, RankBody body, const MpiOptions& options) {
  MpiRanks ranks(find_plugin(), options);
  int code = 0;
  try {
    ranks.run([&](Comm& comm) {
      const schedule::ParallelLayout layout = schedule::parse_layout(stages.ranks);
      schedule::check_num_ranks(layout, comm.size());
      if (stages.bind == "auto") bind_to_own_cores(comm);
      code = body(comm, layout);
    });
  } catch (const Error& error) {
    // Here: where a rank is dead, MPI ends this process with the others when `ranks` goes.
    if (ranks.speaks()) say(fmt::format("strata: {}\n", error.what()));
    code = exit_code(error);
  }
  return code;
}

void check_layout(const schedule::ParallelLayout& layout, const model::ModelConfig& config) {
  model::check_division(model::LayerTable(config),
                        {.expert = layout.expert, .tensor = layout.tensor});
}

void check_optimizer_of_ranks(const schedule::ParallelLayout& layout,
                              const std::string& optimizer) {
  if (layout.tensor == 1 || optimizer != "muon") return;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("--ranks tensor={}: Muon steps whole matrices, of which a tensor rank "
                          "has some rows; give --optimizer adamw, or pipeline=N, data=N or both",
                          layout.tensor));
}

void check_started_alone() {
  const std::string count = env_mpi_size();
  if (count.empty() || count == "1") return;
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("mpirun or srun has started {} of this command; give --ranks pipeline={}, or "
                  "start it once (in a shell of srun: unset SLURM_STEP_NUM_TASKS)",
                  count, count));
}

StageOptions stages_with_layout(const StageOptions& given, const schedule::ParallelLayout& layout) {
  StageOptions stages = given;
  stages.ranks_each = given.stages;
  stages.stages = layout.pipeline * given.stages;
  stages.data = layout.data;
  stages.tensor = layout.tensor;
  stages.expert = layout.expert;
  return stages;
}

ProcessRanks process_ranks(const StageOptions& stages) {
  return {.threads = stages.ranks_each, .data = stages.data * stages.tensor * stages.expert};
}

// A backward's products that come later would have turns of their own.
void check_deferred_weight_grads(const engine::PipelinePlan& plan, const StageOptions& options) {
  if (plan.num_dealing() == 1 || !any_stage_defers_weight_gradients(plan)) return;
  const std::string_view kind = plan.data > 1 ? "data" : "expert";
  throw Error(ErrorCode::kUnsupported,
              fmt::format("--ranks {}={} and --pipeline-schedule {}: gradients of all parameters "
                          "that come behind a backward are not summed over {} ranks yet; give "
                          "1f1b, or train an adapter",
                          kind, plan.data > 1 ? plan.data : plan.expert, options.schedule, kind));
}

void check_memory_of_ranks(const std::string& memory, const std::string& offload) {
  if (memory.empty() || offload.empty()) return;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("--ranks and --memory {}, with --offload {}: of ranks that are processes "
                          "nothing that --memory chooses goes to files; leave it out",
                          memory, offload));
}

void add_schedule_hash(const StageOptions& stages, RankFacts& facts) {
  schedule::Kind kind = {};
  const std::string& file = stages.schedule;
  if (schedule::parse_kind(file, kind)) return;
  facts.emplace_back("--pipeline-schedule (hash)",
                     file_exists(file)
                         ? fmt::format("{:016x}", data::hash_content(data::InputFile(file)))
                         : "none");
}

RankFacts collect_rank_facts(const OptionTable& table) {
  RankFacts facts = {
      {"version", kVersion},
      {"build", fmt::format("{} {}", kCommit, kBuild)},
      {"program (hash)", fmt::format("{:016x}", data::hash_content(data::InputFile(kProgram)))},
      {"CPU path", std::string(arithmetic_in_use())}};
  for (const OptionRow& row : table.rows()) {
    if (std::find(kOfOne.begin(), kOfOne.end(), row.name) != kOfOne.end()) continue;
    facts.emplace_back("--" + row.name, row.text());
  }
  return facts;
}

RankFacts collect_rank_facts(const LoadSpec& spec, const OptionTable& table) {
  RankFacts facts = collect_rank_facts(table);
  facts.emplace_back("base model (hash)", compute_model_identity(spec.texts));
  facts.emplace_back("dtype", spec.dtype == DType::kBF16 ? "bf16" : "f32");
  return facts;
}

std::vector<std::string> gather_texts(Comm& comm, const std::string& own) {
  if (comm.rank() != 0) {
    send_text(comm, 0, own);
    return {};
  }
  std::vector<std::string> texts = {own};
  for (int other = 1; other < comm.size(); ++other) texts.push_back(receive_text(comm, other));
  return texts;
}

void check_ranks_alike(Comm& comm, const RankFacts& facts) {
  const std::vector<std::string> hosts = gather_texts(comm, host_name());
  for (const auto& [what, value] : facts) {
    if (comm.rank() != 0) {
      send_text(comm, 0, value);
      continue;
    }
    for (int other = 1; other < comm.size(); ++other) {
      const std::string theirs = receive_text(comm, other);
      if (theirs != value) refuse_difference(what, hosts, value, other, theirs);
    }
  }
}

void broadcast_bytes(Comm& comm, void* data, int64_t bytes) {
  auto* const begin = static_cast<std::byte*>(data);
  for (int64_t first = 0; first < bytes; first += kPiece) {
    const int64_t count = std::min(kPiece, bytes - first);
    if (comm.rank() != 0) {
      comm.receive_bytes(0, kTag, begin + first, count);
      comm.send_bytes(0, kTag, nullptr, 0);
      continue;
    }
    for (int other = 1; other < comm.size(); ++other)
      comm.send_bytes(other, kTag, begin + first, count);
    for (int other = 1; other < comm.size(); ++other) comm.receive_bytes(other, kTag, nullptr, 0);
  }
}

void broadcast(Comm& comm, std::string& text) {
  auto size = std::ssize(text);
  broadcast(comm, size);
  text.resize(static_cast<size_t>(size));
  broadcast_bytes(comm, text.data(), size);
}

}  // namespace strata::apps
