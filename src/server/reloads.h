// SPDX-License-Identifier: Apache-2.0
// Reloads: what SIGHUP asks for, on a thread of its own, so that a disk that hangs holds up neither
// those who are served nor the signals. What is read is first checked whole, then used at once.
//   Reloads reloads([sources] { auto keys = read(sources); return [keys] { use(keys); }; });
//   reloads.ask();
#pragma once
#include <functional>
#include <memory>

namespace strata::server {

class Reloads {
 public:
  // What a read comes to: called at once on the same thread, and never after the end of the
  // Reloads.
  using Use = std::function<void()>;
  // Holds all that it needs: in a read that hangs it may outlive the Reloads. Throws nothing.
  using Read = std::function<Use()>;

  explicit Reloads(Read read);
  ~Reloads();  // waits for a Use, never for a Read
  Reloads(const Reloads&) = delete;
  Reloads& operator=(const Reloads&) = delete;

  // Any thread: reads once more, after what is being read now. `then` is called behind the Use.
  void ask(Use then = {});

 private:
  struct State;
  std::shared_ptr<State> state_;  // its thread's too
};

}  // namespace strata::server
