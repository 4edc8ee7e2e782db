// SPDX-License-Identifier: Apache-2.0
#include "server/reloads.h"

#include <thread>
#include <utility>

#include "base/mutex.h"

namespace strata::server {

struct Reloads::State {
  explicit State(Read how) : read(std::move(how)) {}

  void loop() {
    for (;;) {
      {
        const MutexLock lock(mutex);
        while (!is_asked && !is_stopping) wake.wait(mutex);
        if (is_stopping) return;
        is_asked = false;
      }
      const Use use = read();
      const MutexLock lock(mutex);
      if (is_stopping) return;
      use();
    }
  }

  const Read read;
  Mutex mutex;
  CondVar wake;
  bool is_asked GUARDED_BY(mutex) = false;
  bool is_stopping GUARDED_BY(mutex) = false;
};

Reloads::Reloads(Read read) : state_(std::make_shared<State>(std::move(read))) {
  std::thread([state = state_] { state->loop(); }).detach();
}

Reloads::~Reloads() {
  const MutexLock lock(state_->mutex);
  state_->is_stopping = true;
  state_->wake.notify_all();
}

void Reloads::ask() {
  const MutexLock lock(state_->mutex);
  state_->is_asked = true;
  state_->wake.notify_all();
}

}  // namespace strata::server
