// Completion: what follows the end of a command, as its submission left it: it makes the response
// of a success, or undoes what was prepared. Each kind is a struct of its own, in the file of its
// handler, and names what it works on.
#pragma once
#include "api/result.h"
#include "server/http/message.h"

namespace strata::server {

class Completion {
 public:
  Completion() = default;
  Completion(const Completion&) = delete;
  Completion& operator=(const Completion&) = delete;
  virtual ~Completion() = default;

  // Of a success; throws Error for a fault in what follows it.
  virtual Response finish(const api::Outcome& outcome) = 0;
  // The command was refused or failed, or finish() threw.
  virtual void undo() {}
  // finish() and undo() work on files alone, and may run on another thread.
  [[nodiscard]] virtual bool writes_files() const { return false; }
};

}  // namespace strata::server
