// SPDX-License-Identifier: Apache-2.0
// Dispatch: the way from the server to whatever runs commands, as functions that apps/serve
// binds to the scheduler and tests to a fake. Called on the I/O thread, where nothing else is said;
// each accepted command is answered by exactly one Service::post().
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "api/admission.h"
#include "api/command.h"
#include "api/result.h"

namespace strata::server {

struct Dispatch {
  std::function<api::Admission(api::Command)> submit;
  // This number was refused before it got there: nobody waits for it.
  std::function<void(const api::ModelId&, int64_t seq_id)> consume;
  std::function<void(const api::SessionId&, const std::string& reason)> end_session;
  // A sample that has not ended fails with this reason and leaves. False where there is none.
  std::function<bool(const api::RequestId&, const std::string& reason)> cancel;
  // Any thread: the memory of fixed sampler weights may go.
  std::function<void(api::BaseId, const api::SnapshotId&)> release;
  // Any thread: writes the files that an api::Saved of this request names, and returns their bytes;
  // throws Error. Or lets go what was copied for them.
  std::function<int64_t(const api::RequestId&)> write_saved;
  std::function<void(const api::RequestId&)> drop_saved;
  // Bytes of a model's parameters in a file: to reserve space for a save before it is accepted.
  std::function<int64_t(api::BaseId, const api::LoraConfig&)> parameter_bytes;
  // Several times a second. `excused` seconds of the time until `now` count for no time limit.
  std::function<void(double now, double excused)> tick;
  // Why no engine goes on although nothing of this process hangs: without names of the machine's
  // paths; empty, as where there is nobody to ask: they do.
  std::function<std::string()> why_engines_wait = {};
};

}  // namespace strata::server
