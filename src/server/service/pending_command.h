// What the end of a command is waited for with: as its submission left it, until it is settled.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "server/service/completion.h"
#include "server/view/watch.h"

namespace strata::server {

struct PendingCommand {
  std::shared_ptr<Completion> completion;
  int64_t promised = 0;     // bytes that the result takes whatever becomes of it
  std::string key_id = {};  // whose tokens they are: of passes and samples
  // Set by Service::submit().
  WatchedCommand watched = {};
  std::string tenant = {};
  std::shared_ptr<void> tokens = {};  // of the quota, until it is known how many they were
};

}  // namespace strata::server
