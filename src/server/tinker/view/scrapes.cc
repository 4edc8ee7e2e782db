// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/view/scrapes.h"

#include <utility>

#include "base/clock.h"

namespace strata::server {
namespace {

constexpr double kHung = 5.0;  // seconds without a tick

}  // namespace

double Scrapes::tick_age(double now) const {
  const double ticked = ticked_.load(std::memory_order_relaxed);
  return ticked > 0 ? now - ticked : 0.0;
}

void Scrapes::Question::answer(const std::function<Response()>& make) {
  if (!is_answered.exchange(true)) respond(make());
}

void Scrapes::post_with_deadline(const Respond& respond, std::function<Response()> make,
                                 std::function<Response()> late) {
  // One that hangs is not given ever more to do.
  if (tick_age(now_seconds()) > kHung) return respond(late());
  auto question = std::make_shared<Question>();
  question->respond = respond;
  question->late = std::move(late);
  question->deadline = now_seconds() + kPatience;
  open_.push_back(question);
  post_([question, make = std::move(make)] { question->answer(make); });
}

void Scrapes::answer_overdue(double now) {
  std::erase_if(open_, [&](const std::shared_ptr<Question>& question) {
    if (now >= question->deadline) question->answer(question->late);
    return question->is_answered.load();
  });
}

}  // namespace strata::server
