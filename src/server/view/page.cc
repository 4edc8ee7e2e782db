#include "server/view/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "server/protocol/json_body.h"
#include "server/view/page_files.h"

namespace strata::server {
namespace {

constexpr size_t kMostRuns = 50;

Response file_response(const char* content_type, std::string_view text) {
  Response response;
  response.content_type = content_type;
  response.body = std::string(text);
  response.headers = {{"Content-Security-Policy", "default-src 'self'; frame-ancestors 'none'"},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cache-Control", "no-cache"}};
  return response;
}

std::string memory_json(const EngineStats& s) {
  struct Use {
    const char* name;
    int64_t bytes;
    int64_t limit;
  };
  const Use uses[] = {{"weights", s.weights, s.weights},
                      {"passes", s.passes, s.passes},
                      {"adapters", s.adapter_bytes, s.adapter_limit},
                      {"sampler weights", s.snapshot_bytes, s.snapshot_limit},
                      {"KV cache", s.kv_bytes, s.kv_limit},
                      {"resident", resident_bytes(), s.budget}};
  std::string out;
  for (const Use& use : uses) {
    fmt::format_to(std::back_inserter(out), "{}{{\"use\":\"{}\",\"bytes\":{},\"limit\":{}}}",
                   out.empty() ? "" : ",", use.name, use.bytes, use.limit);
  }
  return out;
}

bool may_see(const Request& request, const std::string& tenant) {
  return request.is_admin || request.tenant == tenant;
}

}  // namespace

std::string LivePage::models_json() const {
  std::string out;
  for (const BaseName& name : parts_.names.names()) {
    const api::BaseInfo& base = parts_.bases.at(static_cast<size_t>(name.model));
    fmt::format_to(std::back_inserter(out),
                   "{}{{\"name\":{},\"architecture\":{},\"max_context\":{}}}",
                   out.empty() ? "" : ",", json_quoted(name.name), json_quoted(base.architecture),
                   base.max_context);
  }
  return out;
}

std::string LivePage::adapters_json(const Request& request) const {
  std::string out;
  for (const auto& [id, model] : parts_.service.models()) {
    if (!may_see(request, model.tenant)) continue;
    fmt::format_to(std::back_inserter(out), "{}{{\"id\":{},\"tenant\":{},\"base\":{},\"rank\":{}}}",
                   out.empty() ? "" : ",", json_quoted(id), json_quoted(model.tenant),
                   json_quoted(model.base_name), model.lora.rank);
  }
  return out;
}

std::string LivePage::runs_json(const Request& request) const {
  std::vector<std::pair<const std::string*, const WatchedRun*>> runs;
  for (const auto& [id, run] : parts_.watch.runs()) {
    if (may_see(request, run.tenant)) runs.emplace_back(&id, &run);
  }
  std::sort(runs.begin(), runs.end(),
            [](const auto& a, const auto& b) { return a.second->begin > b.second->begin; });
  if (runs.size() > kMostRuns) runs.resize(kMostRuns);
  std::string out;
  for (const auto& [id, run] : runs) {
    std::string curve;
    for (const LossCurve::Point& point : run->curve.points()) {
      fmt::format_to(std::back_inserter(curve), "{}[{},{:.6g}]", curve.empty() ? "" : ",",
                     point.step, point.loss);
    }
    fmt::format_to(std::back_inserter(out),
                   "{}{{\"id\":{},\"tenant\":{},\"base\":{},\"rank\":{},\"live\":{},"
                   "\"started\":\"{}\",\"steps\":{},\"curve\":[{}]}}",
                   out.empty() ? "" : ",", json_quoted(*id), json_quoted(run->tenant),
                   json_quoted(run->base_name), run->rank, run->live, rfc3339(run->begin),
                   run->steps, curve);
  }
  return out;
}

std::string LivePage::history_json() const {
  std::string out;
  for (const Watch::Rate& rate : parts_.watch.history()) {
    fmt::format_to(std::back_inserter(out), "{}[{:.1f},{:.1f}]", out.empty() ? "" : ",", rate.train,
                   rate.sample);
  }
  return out;
}

std::string LivePage::usage_json(const Request& request) const {
  std::string out;
  const auto all = request.is_admin ? std::nullopt : std::optional<std::string>(request.tenant);
  for (const UsageRow& row : parts_.usage.rows(all)) {
    fmt::format_to(std::back_inserter(out),
                   "{}{{\"tenant\":{},\"key\":{},\"requests\":{},\"trained\":{},\"sampled\":{}}}",
                   out.empty() ? "" : ",", json_quoted(row.tenant), json_quoted(row.key_id),
                   row.counts[0], row.counts[1], row.counts[2]);
  }
  return out;
}

Response LivePage::overview(const Request& request) const {
  const EngineStats stats = parts_.stats();
  const Watch::Rate rate = parts_.watch.rate();
  return json_response(
      200, fmt::format("{{\"admin\":{},\"models\":[{}],\"adapters\":[{}],\"runs\":[{}],"
                       "\"rate\":{{\"train\":{:.1f},\"sample\":{:.1f}}},\"history\":[{}],"
                       "\"memory\":[{}],\"usage\":[{}],\"queues\":{{\"training\":{},\"samples\":{},"
                       "\"running\":{},"
                       "\"polls\":{}}}}}",
                       request.is_admin, models_json(), adapters_json(request), runs_json(request),
                       rate.train, rate.sample, history_json(), memory_json(stats),
                       usage_json(request), stats.queued_training, stats.queued_samples,
                       stats.running_samples, parts_.service.futures().num_parked()));
}

void LivePage::add_routes(Router& router) {
  const auto file = [&](const char* path, const char* type, std::string_view text) {
    router.add({"GET", path, BodyKind::kNone,
                at_once([type, text](const Request&) { return file_response(type, text); }),
                /*needs_key=*/false});
  };
  file("/", "text/html; charset=utf-8", page_html());
  file("/page.js", "text/javascript; charset=utf-8", page_script());
  file("/page.css", "text/css; charset=utf-8", page_style());
  router.add({.method = "GET",
              .pattern = "/page/overview",
              .handler = at_once([this](const Request& request) { return overview(request); }),
              .scope = Scope::kRead,
              .effect = Effect::kReads});
}

}  // namespace strata::server
