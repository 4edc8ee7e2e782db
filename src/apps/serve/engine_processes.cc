// SPDX-License-Identifier: Apache-2.0
// EngineHost where several processes have the stages of its models.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <set>
#include <utility>

#include "apps/serve/engine_host.h"
#include "base/error.h"
#include "base/say.h"
#include "setup/exit_code.h"

namespace strata::apps {
namespace {

// Fails the samples that want a grammar, which is of this process alone (api/command.h).
void refuse_grammars(api::Work& work, std::vector<api::Result>& results) {
  std::set<api::RequestId> refused;
  std::erase_if(work.samples, [&](const api::SampleRows& rows) {
    if (std::get<api::Sample>(rows.command->op).grammar == nullptr) return false;
    if (!refused.insert(rows.command->request).second) return true;
    results.push_back(
        {rows.command->request,
         api::Failure{
             api::FaultCategory::kUser,
             "sample: answers that fit a schema or a grammar are not sampled by a server "
             "over --ranks yet; leave the schema out, or serve the model in one process"}});
    return true;
  });
}

}  // namespace

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
void EngineHost::run_leading_others() {
  const auto end_all = [this](const Error& error) {
    processes_->announce_failure(error.code, error.what());
    say(fmt::format("strata: {}\n", error.what()));
    std::fflush(nullptr);
    std::_Exit(exit_code(error));
  };
  try {
    run_until_stopped();
    turns_->end();
  } catch (const Error& error) {
    end_all(error);
  } catch (const std::exception& error) {
    end_all(Error(ErrorCode::kIo, error.what()));
  }
}

std::vector<api::Result> EngineHost::run_in_all_processes(api::Work work,
                                                          const Interruption& breaks) {
  std::vector<api::Result> refused;
  refuse_grammars(work, refused);
  if (work.empty()) return refused;
  std::vector<api::Result> results =
      turns_->run(*engines_.at(static_cast<size_t>(work.base)).runner, work, &breaks);
  std::move(refused.begin(), refused.end(), std::back_inserter(results));
  return results;
}

}  // namespace strata::apps
