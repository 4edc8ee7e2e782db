// SPDX-License-Identifier: Apache-2.0
#include "apps/setup/weight_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "backend/mpi_comm.h"
#include "base/check.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"

namespace strata::apps {
namespace {

constexpr int64_t kTag = 0;
constexpr int64_t kProbeBytes = 4096;

// The same number on ranks of one machine as it runs now, and of one host name: where two names
// are one machine's, somebody wants them apart.
double machine_number() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  constexpr int kKept = 53;  // bits of a double
  return static_cast<double>(Hash::of(host_name() + "\n" + boot) >> (64 - kKept));
}

void send_place(Comm& ranks, int to, const SharedPlace& place) {
  ranks.send_bytes(to, kTag, &place, sizeof(place));
}

SharedPlace receive_place(Comm& ranks, int from) {
  SharedPlace place;
  ranks.receive_bytes(from, kTag, &place, sizeof(place));
  return place;
}

// Whether this rank can read what the first one has published.
bool can_read(Comm& ranks, int first) {
  try {
    SharedMemory memory(receive_place(ranks, first));
    return Memory(memory, kProbeBytes).data() != nullptr;
  } catch (const Error& error) {
    log(LogLevel::kWarning,
        fmt::format("--ranks: rank {} loads a copy of the weights of its own, since it cannot use "
                    "that of rank {}: {}",
                    ranks.rank(), first, error.what()));
  }
  return false;
}

}  // namespace

WeightGroup::WeightGroup(Comm& ranks, int data, bool shares)
    : ranks_(ranks), members_({ranks.rank()}) {
  if (!shares) return;
  std::vector<double> machines, readers;
  ranks.all_gather({{machine_number()}}, machines);
  const auto group_of = [&](int rank) {
    std::vector<int> group;
    for (int other = rank / data * data; other < (rank / data + 1) * data; ++other) {
      if (machines[static_cast<size_t>(other)] == machines[static_cast<size_t>(rank)])
        group.push_back(other);
    }
    return group;
  };
  const std::vector<int> near = group_of(ranks.rank());
  SharedMemory memory;
  Memory probe;  // until all have answered
  bool reads = true;
  if (near.front() == ranks.rank()) {
    probe = Memory(memory, kProbeBytes);
    const SharedPlace place = memory.publish();
    for (const int other : near) {
      if (other != ranks.rank()) send_place(ranks, other, place);
    }
  } else {
    reads = can_read(ranks, near.front());
  }
  ranks.all_gather({{reads ? 1.0 : 0.0}}, readers);
  const auto members_of = [&](int rank) {
    std::vector<int> members = group_of(rank);
    if (readers[static_cast<size_t>(rank)] == 0.0) return std::vector<int>{rank};
    std::erase_if(members, [&](int other) { return readers[static_cast<size_t>(other)] == 0.0; });
    return members;
  };
  members_ = members_of(ranks.rank());
  least_size_ = size();
  for (int rank = 0; rank < ranks.size(); ++rank)
    least_size_ = std::min(least_size_, static_cast<int>(members_of(rank).size()));
}

std::unique_ptr<SharedMemory> WeightGroup::begin() {
  if (size() == 1) return nullptr;
  if (members_.front() == ranks_.rank()) return std::make_unique<SharedMemory>();
  return std::make_unique<SharedMemory>(receive_place(ranks_, members_.front()));
}

void WeightGroup::end(SharedMemory* memory) {
  if (memory == nullptr || memory->is_filled()) return;
  const SharedPlace place = memory->publish();
  for (const int other : members_) {
    if (other != ranks_.rank()) send_place(ranks_, other, place);
  }
}

void share_weights(Comm& ranks, StageOptions& stages) {
  if (stages.data == 1 || stages.shard_weights) return;
  stages.weight_sharers = WeightGroup(ranks, stages.data, /*shares=*/true).least_size();
}

}  // namespace strata::apps
