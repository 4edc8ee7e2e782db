// SPDX-License-Identifier: Apache-2.0
// GroupComm: some ranks of a run among themselves: each `stride`-th from `first` on, which are 0,
// 1, ... here. Its messages have tags of their own where groups of the same ranks differ in
// `first_tag`. One thread a rank.
#pragma once
#include "backend/comm.h"

namespace strata {

struct RankGroup {
  int first = 0;
  int stride = 1;
  int size = 1;
  int64_t first_tag = 0;
};

class GroupComm : public Comm {
 public:
  // The Comm of a rank that is in the group. Borrows `all`.
  GroupComm(Comm& all, const RankGroup& group);
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return group_.size; }
  [[nodiscard]] int rank_here() const override { return all_.rank_here(); }
  [[nodiscard]] int ranks_here() const override { return all_.ranks_here(); }
  [[nodiscard]] int64_t end_of_tags() const override {
    return all_.end_of_tags() - group_.first_tag;
  }
  void send_bytes(int to, int64_t tag, const void* data, int64_t bytes) override;
  void receive_bytes(int from, int64_t tag, void* data, int64_t bytes) override;

 private:
  [[nodiscard]] int rank_of(int member) const;

  Comm& all_;
  const RankGroup group_;
  const int rank_;
};

}  // namespace strata
