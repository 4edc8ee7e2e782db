// SPDX-License-Identifier: Apache-2.0
// What the end of a command is waited for with, as its submission left it, until it is settled: its
// Completion makes the response of a success, or undoes what was prepared. Each kind is a struct of
// its own, in the file of its handler, and names what it works on.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "api/result.h"
#include "server/http/message.h"
#include "server/service/listener.h"
#include "server/service/remembered.h"
#include "server/view/watch.h"

namespace strata::server {

class Completion {
 public:
  Completion() = default;
  Completion(const Completion&) = delete;
  Completion& operator=(const Completion&) = delete;
  virtual ~Completion() = default;

  // Of a success; throws Error for a fault in what follows it.
  virtual Response finish(const api::Outcome& outcome) = 0;
  // Before the files of a save are written, on the thread that writes them; throws Error.
  virtual void make_folder() {}
  // The command was refused or failed, or make_folder() or finish() threw.
  virtual void undo() {}
  // finish() works on files alone, and runs on another thread, and undo() behind it: when nothing
  // is made yet it is called on the I/O thread, thousands of times in a row.
  [[nodiscard]] virtual bool writes_files() const { return false; }
};

struct PendingCommand {
  std::shared_ptr<Completion> completion = {};  // null: a listener is told, and nobody polls
  Listener listener = {};
  std::string key_id = {};    // whose tokens they are: of data and samples
  RequestNumber number = {};  // of a sample; those of models submit() knows
  int64_t num_samples = 0;    // of one that has a number
  // Set by Service::submit().
  api::RequestId request = {};
  bool is_sample = false;
  WatchedCommand watched = {};
  std::string tenant = {};
  std::shared_ptr<void> tokens = {};  // of the quota, until it is known how many they were
  int64_t num_told = 0;               // of a sample: tokens so far
};

}  // namespace strata::server
