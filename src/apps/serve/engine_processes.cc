// SPDX-License-Identifier: Apache-2.0
// EngineHost where several processes have the stages of its models.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "apps/serve/engine_host.h"
#include "base/error.h"
#include "base/say.h"
#include "setup/exit_code.h"

namespace strata::apps {

// What scheduler and passes go by is the same in all.
void EngineHost::agree_on_limits() {
  std::vector<int64_t*> limits = {&plan_.pass.pass_tokens};
  for (std::vector<int64_t>* of_models :
       {&plan_.server.longest_data, &plan_.server.max_pages, &plan_.server.max_states}) {
    for (int64_t& limit : *of_models) limits.push_back(&limit);
  }
  std::vector<double> own, all;  // which hold them
  for (const int64_t* limit : limits) own.push_back(static_cast<double>(*limit));
  processes_->all_gather(own, all);
  for (size_t i = 0; i < all.size(); ++i) {
    int64_t& limit = *limits[i % limits.size()];
    limit = std::min(limit, static_cast<int64_t>(all[i]));
  }
}

void EngineHost::follow() {
  engine::follow_turns(*processes_, [this](api::BaseId base) -> engine::WorkRunner& {
    return *engines_.at(static_cast<size_t>(base)).runner;
  });
}

// The end of a process is that of all: what was acknowledged is in the store.
void EngineHost::end_all_processes(ErrorCode code, const std::string& what) {
  processes_->announce_failure(code, what);
  say(fmt::format("strata: {}\n", what));
  std::fflush(nullptr);
  std::_Exit(exit_code(Error(code, what)));
}

void EngineHost::run_leading_others() {
  try {
    run_until_stopped();
    turns_->end();
  } catch (const Error& error) {
    end_all_processes(error.code, error.what());
  } catch (const std::exception& error) {
    end_all_processes(ErrorCode::kIo, error.what());
  }
}

}  // namespace strata::apps
