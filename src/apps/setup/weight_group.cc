// SPDX-License-Identifier: Apache-2.0
#include "apps/setup/weight_group.h"

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
double machine_hash() {
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

}  // namespace

WeightGroup::WeightGroup(Comm& ranks, int data, bool shares, Warnings tell)
    : ranks_(ranks), members_({ranks.rank()}) {
  if (!shares) return;
  std::vector<double> machines, able;
  ranks.all_gather({{machine_hash()}}, machines);
  const auto group_of = [&](int rank) {
    std::vector<int> group;
    for (int other = rank / data * data; other < (rank / data + 1) * data; ++other) {
      if (machines[static_cast<size_t>(other)] == machines[static_cast<size_t>(rank)])
        group.push_back(other);
    }
    return group;
  };
  const std::vector<int> near = group_of(ranks.rank());
  const int first = near.front();
  SharedMemory memory;
  Memory probe;  // until all have answered
  bool can = true;
  if (first != ranks.rank()) {
    const SharedPlace place = receive_place(ranks, first);
    can = try_to_share(ranks, first, tell, [&] {
      SharedMemory theirs(place);
      const Memory mapped(theirs, kProbeBytes);
    });
  } else if (near.size() > 1) {
    SharedPlace place;
    can = try_to_share(ranks, first, tell, [&] {
      probe = Memory(memory, kProbeBytes);
      place = memory.publish();
    });
    for (const int other : near) {
      if (other != first) send_place(ranks, other, place);
    }
  }
  ranks.all_gather({{can ? 1.0 : 0.0}}, able);
  const auto is_able = [&](int rank) { return able[static_cast<size_t>(rank)] != 0.0; };
  const auto members_of = [&](int rank) {
    std::vector<int> members = group_of(rank);
    if (!is_able(rank) || !is_able(members.front())) return std::vector<int>{rank};
    std::erase_if(members, [&](int other) { return !is_able(other); });
    return members;
  };
  members_ = members_of(ranks.rank());
  least_size_ = size();
  for (int rank = 0; rank < ranks.size(); ++rank)
    least_size_ = std::min(least_size_, static_cast<int>(members_of(rank).size()));
}

std::unique_ptr<SharedMemory> WeightGroup::begin_loading() {
  if (size() == 1) return nullptr;
  if (members_.front() == ranks_.rank()) return std::make_unique<SharedMemory>();
  return std::make_unique<SharedMemory>(receive_place(ranks_, members_.front()));
}

void WeightGroup::end_loading(SharedMemory* memory) {
  if (memory == nullptr || memory->is_filled()) return;
  const SharedPlace place = memory->publish();
  for (const int other : members_) {
    if (other != ranks_.rank()) send_place(ranks_, other, place);
  }
}

void share_weights(Comm& ranks, StageOptions& stages) {
  if (stages.data == 1 || stages.shard_weights) return;
  stages.weight_sharers =
      WeightGroup(ranks, stages.data, /*shares=*/true, Warnings::kNone).least_size();
}

}  // namespace strata::apps
