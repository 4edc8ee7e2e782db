// SPDX-License-Identifier: Apache-2.0
// TinkerServer: the whole server but the engines: keys, data directory, state, service and HTTP,
// wired from the options. The owner brings what runs commands as a Dispatch and hands back results.
//   TinkerServer server(options, names, bases, texts, budget, dispatch, stats);
//   server.start();  ...  server.post(events);  ...  server.stop();
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/event.h"
#include "api/work.h"
#include "server/openai/served_text.h"
#include "server/store/checkpoints/model_merger.h"
#include "server/tinker/base_names.h"
#include "server/tinker/budget.h"
#include "server/tinker/options/options.h"
#include "server/tinker/service/dispatch.h"
#include "server/tinker/view/engine_stats.h"

namespace strata::server {

class TinkerServer {
 public:
  // Takes the data directory's lock and opens the state store. `bases` in the order of `names`'
  // directories; `stats` is called on the I/O thread; `merger` may be none. Throws Error for what
  // the operator must change.
  TinkerServer(const ServeOptions& options, const BaseNames& names,
               const std::vector<api::BaseInfo>& bases,
               std::vector<std::optional<ServedText>> texts, const Budget& budget,
               Dispatch dispatch, std::function<EngineStats()> stats, ModelMerger merger = {});
  ~TinkerServer();
  TinkerServer(const TinkerServer&) = delete;
  TinkerServer& operator=(const TinkerServer&) = delete;

  // Listens. After it the server answers.
  void start();
  [[nodiscard]] int port() const;
  [[nodiscard]] int metrics_port() const;
  // Any thread: what happens to requests, as engines and the scheduler tell it.
  void post(std::vector<api::Event> events);
  // Any thread (SIGHUP): reads the keys and the certificate and opens the audit log again; a
  // fault is logged and the old ones stay. `then` is called when that is done.
  void reload(std::function<void()> then = {});
  // Any thread: seconds since the I/O thread said that it runs.
  [[nodiscard]] double tick_age() const;
  // New work is answered 503 from now on.
  void begin_shutdown();
  // After the last post(): fails what is pending, answers the polls, and joins.
  void stop();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace strata::server
