// SPDX-License-Identifier: Apache-2.0
#include "server/reloads.h"

#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace strata::server {

struct Reloads::State {
  explicit State(Read how) : read(std::move(how)) {}

  // Reads again each time that somebody asks, and uses what was read, until stopped.
  void run_reloads() {
    for (;;) {
      std::vector<Use> behind;
      {
        const MutexLock lock(mutex);
        while (asked.empty() && !is_stopping) wake.wait(mutex);
        if (is_stopping) return;
        behind.swap(asked);
      }
      behind.insert(behind.begin(), read());
      const MutexLock lock(mutex);
      if (is_stopping) return;
      for (const Use& use : behind)
        if (use) use();
    }
  }

  const Read read;
  Mutex mutex;
  CondVar wake;
  std::vector<Use> asked GUARDED_BY(mutex);  // what is to follow, of each time
  bool is_stopping GUARDED_BY(mutex) = false;
};

Reloads::Reloads(Read read) : state_(std::make_shared<State>(std::move(read))) {
  std::thread([state = state_] { state->run_reloads(); }).detach();
}

Reloads::~Reloads() {
  const MutexLock lock(state_->mutex);
  state_->is_stopping = true;
  state_->wake.notify_all();
}

void Reloads::ask(Use then) {
  const MutexLock lock(state_->mutex);
  state_->asked.push_back(std::move(then));
  state_->wake.notify_all();
}

}  // namespace strata::server
