// SPDX-License-Identifier: Apache-2.0
#include "backend/group_comm.h"

#include "base/check.h"

namespace strata {

GroupComm::GroupComm(Comm& all, const RankGroup& group)
    : all_(all), group_(group), rank_((all.rank() - group.first) / group.stride) {
  CHECK(rank_of(rank_) == all.rank(), all.rank(), group.first, group.stride, group.size);
  CHECK(rank_of(group.size - 1) < all.size(), group.size, all.size());
}

int GroupComm::rank_of(int member) const {
  if (member == kAnyRank) return kAnyRank;
  CHECK(member >= 0 && member < group_.size, member, group_.size);
  return group_.first + member * group_.stride;
}

void GroupComm::send_bytes(int to, int64_t tag, const void* data, int64_t bytes) {
  all_.send_bytes(rank_of(to), group_.first_tag + tag, data, bytes);
}

void GroupComm::receive_bytes(int from, int64_t tag, void* data, int64_t bytes) {
  all_.receive_bytes(rank_of(from), group_.first_tag + tag, data, bytes);
}

}  // namespace strata
