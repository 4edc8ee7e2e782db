// SPDX-License-Identifier: Apache-2.0
// Answer: a response that is given once, from whatever thread has the job of it; where that job is
// dropped at a shutdown, 503.
#pragma once
#include <utility>

#include "server/http/message.h"
#include "server/tinker/refusals.h"

namespace strata::server {

class Answer {
 public:
  explicit Answer(Respond respond) : respond_(std::move(respond)) {}
  ~Answer() {
    if (respond_) respond_(refuse(kStopping));
  }
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;
  void give(Response response) { std::exchange(respond_, nullptr)(std::move(response)); }

 private:
  Respond respond_;
};

}  // namespace strata::server
