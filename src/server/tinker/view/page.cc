// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/view/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/process_memory.h"
#include "server/tinker/view/page_files.h"
#include "text/json_body.h"

namespace strata::server {
namespace {

constexpr size_t kMostRuns = 50;

Response page_file_response(const char* content_type, std::string_view text) {
  Response response;
  response.content_type = content_type;
  response.body = std::string(text);
  response.headers = {{"Content-Security-Policy", "default-src 'self'; frame-ancestors 'none'"},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cache-Control", "no-cache"}};
  return response;
}

std::string prefix_cache_label(const EngineStats& s) {
  const int64_t hits = s.prompt_tokens == 0 ? 0 : 100 * s.cached_tokens / s.prompt_tokens;
  return fmt::format("of it prefix cache, {} % hits", hits);
}

JsonArray memory_json(const EngineStats& s, const Budget& budget) {
  JsonArray out;
  const auto add = [&out](const char* name, int64_t bytes, int64_t limit) {
    out.add(JsonObject{{"use", name}, {"bytes", bytes}, {"limit", limit}});
  };
  add("weights", s.weights, s.weights);
  add("passes", s.passes, s.passes);
  add("adapters", s.adapter_bytes, s.adapter_limit);
  add("sampler weights", s.snapshot_bytes, s.snapshot_limit);
  add("KV cache", s.kv_bytes, s.kv_limit);
  if (s.state_limit > 0) add("recurrent states", s.state_bytes, s.state_limit);
  add(prefix_cache_label(s).c_str(), s.prefix_bytes, s.kv_limit);
  for (const Budget::Row& row : budget.bytes_by_use()) add(row.name, row.held, row.limit);
  add("resident", read_resident_bytes(), s.budget);
  return out;
}

// A number of the page, with as many digits as it shows.
Json shown(double value) { return Json::written(fmt::format("{:.1f}", value)); }

JsonArray curve_json(const LossCurve& curve) {
  JsonArray out;
  for (const LossCurve::Point& point : curve.points())
    out.add(Json::written(fmt::format("[{},{:.6g}]", point.step, point.loss)));
  return out;
}

bool may_see(const Request& request, const std::string& tenant) {
  return request.is_admin || request.tenant == tenant;
}

using NamedRun = std::pair<const std::string*, const WatchedRun*>;

// At most kMostRuns of those that the request may see, the last that began first.
std::vector<NamedRun> newest_visible_runs(const Watch& watch, const Request& request) {
  std::vector<NamedRun> runs;
  for (const auto& [id, run] : watch.runs()) {
    if (may_see(request, run.tenant)) runs.emplace_back(&id, &run);
  }
  std::sort(runs.begin(), runs.end(),
            [](const auto& a, const auto& b) { return a.second->begin > b.second->begin; });
  if (runs.size() > kMostRuns) runs.resize(kMostRuns);
  return runs;
}

}  // namespace

JsonArray LivePage::models_json() const {
  JsonArray out;
  for (const BaseName& name : parts_.names.names()) {
    const api::BaseInfo& base = parts_.bases.at(static_cast<size_t>(name.model));
    out.add(JsonObject{{"name", name.name},
                       {"architecture", base.architecture},
                       {"max_context", base.max_context}});
  }
  return out;
}

JsonArray LivePage::adapters_json(const Request& request) const {
  JsonArray out;
  for (const auto& [id, model] : parts_.service.models().rows()) {
    if (!may_see(request, model.tenant)) continue;
    out.add(JsonObject{{"id", id},
                       {"tenant", model.tenant},
                       {"base", model.base_name},
                       {"rank", model.lora.rank}});
  }
  return out;
}

JsonArray LivePage::runs_json(const Request& request) const {
  JsonArray out;
  for (const auto& [id, run] : newest_visible_runs(parts_.watch, request)) {
    out.add(JsonObject{{"id", *id},
                       {"tenant", run->tenant},
                       {"base", run->base_name},
                       {"rank", run->rank},
                       {"live", run->live},
                       {"name", run->name},
                       {"started", run->begin},
                       {"steps", run->steps},
                       {"in_flight", run->in_flight},
                       {"curve", curve_json(run->curve)},
                       {"evaluations", curve_json(run->evaluations)}});
  }
  return out;
}

JsonArray LivePage::history_json() const {
  JsonArray out;
  for (const Watch::Rate& rate : parts_.watch.history())
    out.add(JsonArray().add(shown(rate.train)).add(shown(rate.sample)));
  return out;
}

JsonArray LivePage::usage_json(const Request& request) const {
  JsonArray out;
  const auto all = request.is_admin ? std::nullopt : std::optional<std::string>(request.tenant);
  for (const UsageRow& row : parts_.usage.rows(all)) {
    out.add(JsonObject{{"tenant", row.tenant},
                       {"key", row.key_id},
                       {"requests", row.counts[0]},
                       {"trained", row.counts[1]},
                       {"sampled", row.counts[2]},
                       {"prompt", row.counts[3]}});
  }
  return out;
}

Response LivePage::overview_response(const Request& request) const {
  JsonObject reply = {{"admin", request.is_admin},
                      {"models", models_json()},
                      {"adapters", adapters_json(request)},
                      {"runs", runs_json(request)},
                      {"usage", usage_json(request)}};
  if (request.is_admin) reply.add("server", server_json());
  return json_response(200, reply.text());
}

// What all tenants do together: whoever knows what it does itself would see what the others do.
JsonObject LivePage::server_json() const {
  const EngineStats stats = parts_.stats();
  const Watch::Rate rate = parts_.watch.rate();
  return JsonObject{
      {"rate", JsonObject{{"train", shown(rate.train)}, {"sample", shown(rate.sample)}}},
      {"history", history_json()},
      {"memory", memory_json(stats, parts_.budget)},
      {"queues", JsonObject{{"training", stats.queued_training},
                            {"samples", stats.queued_samples},
                            {"running", stats.running_samples},
                            {"polls", parts_.service.futures().num_parked()}}}};
}

void LivePage::add_routes(Router& router) {
  const auto file = [&](const char* path, const char* type, std::string_view text) {
    router.add({"GET", path, BodyKind::kNone,
                at_once([type, text](const Request&) { return page_file_response(type, text); }),
                /*needs_key=*/false});
  };
  file("/", "text/html; charset=utf-8", page_html());
  file("/page.js", "text/javascript; charset=utf-8", page_script());
  file("/chart.js", "text/javascript; charset=utf-8", page_charts());
  file("/play.js", "text/javascript; charset=utf-8", page_playground());
  file("/page.css", "text/css; charset=utf-8", page_style());
  file("/favicon.svg", "image/svg+xml", page_icon());
  file("/favicon.ico", "image/svg+xml", page_icon());  // what browsers ask for unasked
  router.add(
      {.method = "GET",
       .pattern = "/page/overview",
       .handler = at_once([this](const Request& request) { return overview_response(request); }),
       .scope = Scope::kRead,
       .effect = Effect::kReads});
}

}  // namespace strata::server
