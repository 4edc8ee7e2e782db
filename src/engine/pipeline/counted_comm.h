// SPDX-License-Identifier: Apache-2.0
// CountedComm: the same ranks, and how many bytes this one has sent to the others. One thread a
// rank.
#pragma once
#include <functional>
#include <utility>

#include "backend/comm.h"
#include "engine/pipeline/sent_bytes.h"

namespace strata::engine {

class CountedComm : public Comm {
 public:
  // Borrows `all`; `kind_of` a tag, which is not negative.
  CountedComm(Comm& all, std::function<Sent(int64_t tag)> kind_of)
      : all_(all), kind_of_(std::move(kind_of)) {}
  [[nodiscard]] int rank() const override { return all_.rank(); }
  [[nodiscard]] int size() const override { return all_.size(); }
  [[nodiscard]] int rank_here() const override { return all_.rank_here(); }
  [[nodiscard]] int ranks_here() const override { return all_.ranks_here(); }
  [[nodiscard]] int64_t end_of_tags() const override { return all_.end_of_tags(); }
  void send_bytes(int to, int64_t tag, const void* data, int64_t bytes) override {
    if (to != rank()) sent_[tag < 0 ? Sent::kControl : kind_of_(tag)] += bytes;
    all_.send_bytes(to, tag, data, bytes);
  }
  void receive_bytes(int from, int64_t tag, void* data, int64_t bytes) override {
    all_.receive_bytes(from, tag, data, bytes);
  }
  [[nodiscard]] const SentBytes& sent() const { return sent_; }

 private:
  Comm& all_;
  const std::function<Sent(int64_t tag)> kind_of_;
  SentBytes sent_;
};

}  // namespace strata::engine
