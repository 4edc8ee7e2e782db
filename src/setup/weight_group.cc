// SPDX-License-Identifier: Apache-2.0
#include "setup/weight_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "backend/mpi_comm.h"
#include "base/cores.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"

namespace strata::apps {
namespace {

constexpr int64_t kTag = 0;
constexpr int64_t kProbeBytes = 4096;

// The same number on ranks of one machine as it runs now, of one host name (where two names are one
// machine's, somebody wants them apart), and on the same NUMA nodes: who is bound to one reads its
// memory there.
double compute_machine_hash() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  constexpr int kKept = 53;  // bits of a double
  return static_cast<double>(Hash::of(host_name() + "\n" + boot + "\n" + usable_node_list()) >>
                             (64 - kKept));
}

void send_place(Comm& ranks, int to, const SharedPlace& place) {
  ranks.send_bytes(to, kTag, &place, sizeof(place));
}

SharedPlace receive_place(Comm& ranks, int from) {
  SharedPlace place;
  ranks.receive_bytes(from, kTag, &place, sizeof(place));
  return place;
}

// Calls body, whose Error is why this rank and that one do not have the weights together.
template <typename Body>
bool try_to_share(const Comm& ranks, int first, Warnings tell, Body body) {
  try {
    body();
    return true;
  } catch (const Error& error) {
    if (tell == Warnings::kTold) {
      log(LogLevel::kWarning,
          fmt::format("--ranks: rank {} has a copy of the weights of its own, not rank {}'s: {}",
                      ranks.rank(), first, error.what()));
    }
  }
  return false;
}

// Which ranks can have weights together: those that have the same stages, on one machine.
class Neighbours {
 public:
  // Collective.
  Neighbours(Comm& ranks, const AlikeRanks& alike) : alike_(alike) {
    ranks.all_gather({{compute_machine_hash()}}, machines_);
  }

  // Ascending, `rank` itself among them.
  [[nodiscard]] std::vector<int> of(int rank) const {
    std::vector<int> group;
    const int all = alike_.count * alike_.stride, first = rank / all * all + rank % alike_.stride;
    for (int other = first; other < first + all; other += alike_.stride) {
      if (machines_[static_cast<size_t>(other)] == machines_[static_cast<size_t>(rank)])
        group.push_back(other);
    }
    return group;
  }
  // The same without those that cannot share; `rank` alone where it or the first one cannot.
  [[nodiscard]] std::vector<int> that_share_with(int rank, const std::vector<double>& able) const {
    const auto is_able = [&](int other) { return able[static_cast<size_t>(other)] != 0.0; };
    std::vector<int> members = of(rank);
    if (!is_able(rank) || !is_able(members.front())) return {rank};
    std::erase_if(members, [&](int other) { return !is_able(other); });
    return members;
  }

 private:
  AlikeRanks alike_;
  std::vector<double> machines_;
};

// Publishes `probe`, which stays mapped until all have tried it.
bool try_to_publish(Comm& ranks, const std::vector<int>& near, Warnings tell, SharedMemory& memory,
                    Memory& probe) {
  SharedPlace place;
  const int first = ranks.rank();
  const bool can = try_to_share(ranks, first, tell, [&] {
    probe = Memory(memory, kProbeBytes);
    place = memory.publish();
  });
  for (const int other : near) {
    if (other != first) send_place(ranks, other, place);
  }
  return can;
}

bool try_to_map(Comm& ranks, int first, Warnings tell) {
  const SharedPlace place = receive_place(ranks, first);
  return try_to_share(ranks, first, tell, [&] {
    SharedMemory theirs(place);
    const Memory mapped(theirs, kProbeBytes);
  });
}

// For each rank 1 where it can share memory with the first of its neighbours. Collective.
std::vector<double> probe_sharing(Comm& ranks, const std::vector<int>& near, Warnings tell) {
  SharedMemory memory;
  Memory probe;  // until all have answered
  bool can = true;
  if (near.front() != ranks.rank()) {
    can = try_to_map(ranks, near.front(), tell);
  } else if (near.size() > 1) {
    can = try_to_publish(ranks, near, tell, memory, probe);
  }
  std::vector<double> able;
  ranks.all_gather({{can ? 1.0 : 0.0}}, able);
  return able;
}

}  // namespace

WeightGroup::WeightGroup(Comm& ranks, const AlikeRanks& alike, bool shares, Warnings tell)
    : ranks_(ranks), members_({ranks.rank()}) {
  if (!shares) return;
  const Neighbours neighbours(ranks, alike);
  const std::vector<double> able = probe_sharing(ranks, neighbours.of(ranks.rank()), tell);
  members_ = neighbours.that_share_with(ranks.rank(), able);
  least_size_ = size();
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const auto members = neighbours.that_share_with(rank, able);
    least_size_ = std::min(least_size_, static_cast<int>(members.size()));
  }
}

std::unique_ptr<SharedMemory> WeightGroup::begin_loading() {
  if (size() == 1) return nullptr;
  if (members_.front() == ranks_.rank()) return std::make_unique<SharedMemory>();
  return std::make_unique<SharedMemory>(receive_place(ranks_, members_.front()));
}

void WeightGroup::publish_after_loading(SharedMemory* memory) {
  if (memory == nullptr || memory->is_filled()) return;
  const SharedPlace place = memory->publish();
  for (const int other : members_) {
    if (other != ranks_.rank()) send_place(ranks_, other, place);
  }
}

void choose_weight_sharers(Comm& ranks, StageOptions& stages) {
  if (stages.data == 1 || stages.shard_weights) return;
  const AlikeRanks alike = {.count = stages.data, .stride = stages.expert};
  stages.weight_sharers = WeightGroup(ranks, alike, /*shares=*/true, Warnings::kNone).least_size();
}

}  // namespace strata::apps
