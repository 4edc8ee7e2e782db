// SPDX-License-Identifier: Apache-2.0
// Scrapes: questions about a thread that are asked on another one, and are answered within a second
// whether that thread runs or hangs: /metrics and readyz of the metrics' listener.
#pragma once
#include <atomic>
#include <functional>
#include <list>
#include <memory>

#include "server/http/message.h"

namespace strata::server {

class Scrapes {
 public:
  // Runs a task on the thread that is asked about.
  using Post = std::function<void(std::function<void()>)>;

  explicit Scrapes(Post post) : post_(std::move(post)) {}

  // The watched thread: it runs.
  void tick(double now) { ticked_.store(now, std::memory_order_relaxed); }
  // Any thread: since it last said so; 0 before the first time.
  [[nodiscard]] double tick_age(double now) const;

  // The asking thread: `make` on the watched thread, or `late` here when it takes a second.
  void post_with_deadline(const Respond& respond, std::function<Response()> make,
                          std::function<Response()> late);
  // The asking thread, several times a second.
  void answer_overdue(double now);

  static constexpr double kPatience = 0.8;  // seconds; a sweep may be 0.1 s late

 private:
  struct Question {
    Respond respond;
    std::function<Response()> late;
    double deadline = 0;
    std::atomic<bool> is_answered = false;
    void answer(const std::function<Response()>& make);
  };

  Post post_;
  std::atomic<double> ticked_ = 0.0;
  std::list<std::shared_ptr<Question>> open_;
};

}  // namespace strata::server
