// SPDX-License-Identifier: Apache-2.0
// FakeEngine: does what it is told, writes down the order, and answers. Samples run for max_tokens
// decode steps. Commands named in `fail` answer a failure at their first rows.
#pragma once
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "api/result.h"
#include "api/work.h"
#include "scheduler/scheduler.h"

namespace strata::scheduler {

class FakeEngine {
 public:
  static constexpr api::CachePages kCache = {.page_size = 4};
  api::BaseId base = {};
  int64_t pass_tokens = 16;
  int64_t max_rows = 8;
  int64_t pages = 64;
  int64_t saves = 1;
  bool holds_loads = false;  // their answers come by finish_loads()
  double train_cost = 1.0, sample_cost = 1.0, file_cost = 0.0;
  std::set<std::string> fail;
  std::map<std::string, std::vector<std::string>> log;  // by model: requests as they ran
  std::map<std::string, int64_t> tokens;                // by tenant, trained
  int64_t largest_pass = 0, num_passes = 0, num_decodes = 0;
  std::vector<std::string> released, cancelled;
  api::KnownPages known;

  [[nodiscard]] api::Capacity capacity() const {
    const int64_t held = held_pages();
    return {.base = base,
            .pass_tokens = pass_tokens,
            .sample_rows = max_rows - static_cast<int64_t>(running_.size()),
            .free_pages = pages - held,
            .cache = kCache,
            .known = &known,
            .total_pages = pages,
            .running_samples = static_cast<int64_t>(running_.size()),
            .saves = saves,
            .train_seconds = train_seconds_,
            .sample_seconds = sample_seconds_};
  }

  std::vector<api::Result> run(const api::Work& work) {
    results_.clear();
    for (const api::RequestId& id : work.cancel) {
      cancelled.push_back(id.text);
      std::erase_if(running_, [&](const Running& r) { return r.command->request == id; });
      left_.erase(id.text);
      prompts_.erase(id.text);
    }
    for (const api::SnapshotId& id : work.release) released.push_back(id.text);
    for (const auto& command : work.control) {
      note(*command);
      if (is_file_work(*command)) train_seconds_ += file_cost;
      if (holds_loads && std::holds_alternative<api::LoadState>(command->op)) {
        loads_.push_back({command->request, api::Done{}});
        continue;
      }
      answer(*command, api::Done{});
    }
    if (!work.rows.empty()) train(work.rows);
    for (const api::SampleRows& rows : work.samples) join(rows);
    if (work.decode) decode();
    return results_;
  }

  std::vector<api::Result> finish_loads() { return std::exchange(loads_, {}); }

 private:
  static bool is_file_work(const api::Command& command) {
    return std::holds_alternative<api::SaveState>(command.op) ||
           std::holds_alternative<api::LoadState>(command.op);
  }
  struct Running {
    std::shared_ptr<const api::Command> command;
    int64_t left = 0;
    int64_t pages = 0;
  };

  void note(const api::Command& command) {
    log[command.model.text].push_back(command.request.text);
  }
  void answer(const api::Command& command, api::Outcome outcome) {
    if (fail.contains(command.request.text))
      outcome = api::Failure{api::FaultCategory::kUser, "told to fail"};
    results_.push_back({command.request, std::move(outcome)});
  }

  void train(const std::vector<api::DataRange>& all) {
    int64_t used = 0;
    for (const api::DataRange& rows : all) {
      const auto& data = std::get<api::ForwardBackward>(rows.command->op).data;
      if (rows.first == 0) note(*rows.command);
      for (size_t i = rows.first; i < rows.last; ++i) {
        used += Scheduler::datum_tokens(data[i]);
        tokens[rows.command->tenant.text] += Scheduler::datum_tokens(data[i]);
      }
      const bool failed = rows.first == 0 && fail.contains(rows.command->request.text);
      if (failed || rows.last == data.size()) answer(*rows.command, api::ForwardBackwardResult{});
    }
    largest_pass = std::max(largest_pass, used);
    ++num_passes;
    train_seconds_ += train_cost;
  }

  void join(const api::SampleRows& rows) {
    const auto& sample = std::get<api::Sample>(rows.command->op);
    for (int64_t i = rows.first; i < rows.last; ++i) {
      const int64_t prompt = kCache.of_prompt(sample);
      const int64_t rest = sample.num_samples > 1 ? prompt + kCache.to_join(sample, 1).pages : 0;
      if (std::max(kCache.to_join(sample, 0).pages, rest) > pages) {
        results_.push_back(
            {rows.command->request, api::Failure{api::FaultCategory::kUser, "too large"}});
        return;
      }
      if (i == 0) prompts_[rows.command->request.text] = prompt;
      running_.push_back({rows.command, sample.max_tokens,
                          kCache.to_join(sample, i).pages - (i == 0 ? prompt : 0)});
    }
    left_.emplace(rows.command->request.text, sample.num_samples);
  }

  void decode() {
    ++num_decodes;
    sample_seconds_ += sample_cost;
    if (held_pages() > pages) {  // as the cache does when it has no page left
      for (const Running& row : std::exchange(running_, {})) {
        if (left_.erase(row.command->request.text) == 0) continue;
        results_.push_back({row.command->request,
                            api::Failure{api::FaultCategory::kServer, "all pages are in use"}});
      }
      prompts_.clear();
      return;
    }
    for (Running& row : running_) {
      if (--row.left > 0 || --left_[row.command->request.text] > 0) continue;
      prompts_.erase(row.command->request.text);
      answer(*row.command, api::SampleOutput{});
    }
    std::erase_if(running_, [](const Running& row) { return row.left == 0; });
  }

  [[nodiscard]] int64_t held_pages() const {
    int64_t held = 0;
    for (const Running& row : running_) held += row.pages;
    for (const auto& [request, prompt] : prompts_) held += prompt;
    return held;
  }

  std::vector<Running> running_;
  std::map<std::string, int64_t> prompts_;  // pages of a request's prompt
  std::map<std::string, int64_t> left_;     // samples of a request without an end
  std::vector<api::Result> results_, loads_;
  double train_seconds_ = 0.0, sample_seconds_ = 0.0;
};

}  // namespace strata::scheduler
