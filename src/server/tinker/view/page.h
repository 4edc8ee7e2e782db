// SPDX-License-Identifier: Apache-2.0
// LivePage: the live page at / and the JSON it draws. The page's files hold no data and need no
// key; /page/overview needs one and shows that tenant's runs, or everybody's for an admin key.
// Client text is put into JSON here and into text nodes there, never into HTML. I/O thread only.
//   LivePage page({service, watch, names, bases, stats});  page.add_routes(router);
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "api/work.h"
#include "server/http/message.h"
#include "server/http/router.h"
#include "server/tinker/base_names.h"
#include "server/tinker/budget.h"
#include "server/tinker/service/service.h"
#include "server/tinker/view/engine_stats.h"
#include "server/tinker/view/watch.h"

namespace strata::server {

struct PageParts {
  const Service& service;
  const Watch& watch;
  const Usage& usage;
  const Budget& budget;
  const BaseNames& names;
  std::vector<api::BaseInfo> bases;
  std::function<EngineStats()> stats;
};

class LivePage {
 public:
  explicit LivePage(PageParts parts) : parts_(std::move(parts)) {}
  void add_routes(Router& router);

 private:
  Response overview_response(const Request& request) const;
  [[nodiscard]] JsonArray models_json() const;
  [[nodiscard]] JsonArray adapters_json(const Request& request) const;
  [[nodiscard]] JsonArray runs_json(const Request& request) const;
  [[nodiscard]] JsonArray history_json() const;
  [[nodiscard]] JsonObject server_json() const;
  [[nodiscard]] JsonArray usage_json(const Request& request) const;

  PageParts parts_;
};

}  // namespace strata::server
