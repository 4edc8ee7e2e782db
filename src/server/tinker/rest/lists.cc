// SPDX-License-Identifier: Apache-2.0
// What clients list. A page may take long to read and to write as JSON, so both are done on the
// lists' thread, some rows at a time; tenants take turns there, and who has gone is passed over.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>

#include "base/ascii.h"
#include "base/error.h"
#include "server/store/shown_text.h"
#include "server/tinker/refusals.h"
#include "server/tinker/rest/answer.h"
#include "server/tinker/rest/rest.h"

namespace strata::server {
namespace {

constexpr int64_t kMaxPage = 1000;         // rows,
constexpr int64_t kPageBytes = 1 << 20;    // and bytes of JSON
constexpr int64_t kWholeBytes = 16 << 20;  // of a run's checkpoints, which clients cannot page
constexpr int64_t kShare = 4;              // of what a tenant's responses may have: one list
constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();
constexpr int64_t kFirstRows = 32;           // that are read at once; then
constexpr int64_t kBytesAtOnce = 256 << 10;  // about as many as have so many bytes,
constexpr int64_t kMostRows = 1000;          // but no more
constexpr int64_t kNamesAtOnce = 4096;       // of sampling sessions

int64_t read_whole_parameter_or(const Request& request, const char* name, int64_t otherwise,
                                int64_t max) {
  const auto text = request.query_parameter(name);
  if (!text) return otherwise;
  if (const auto value = parse_whole_number(*text)) return std::min(*value, max);
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: got '{}', want a whole number from 0", name, shown_text(*text, 40)));
}

ListPart page_of(const Request& request, int64_t limit) {
  return {.limit = read_whole_parameter_or(request, "limit", limit, kMaxPage),
          .offset = read_whole_parameter_or(request, "offset", 0, INT64_MAX)};
}

// "accessible" is the same as "owned": what is public is read by its path and never listed.
void check_access_scope(const Request& request) {
  const std::string scope = request.query_parameter("access_scope").value_or("owned");
  if (scope == "owned" || scope == "accessible") return;
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("access_scope: got '{}', want owned or accessible", shown_text(scope, 40)));
}

bool shows_external(const Request& request) {
  return request.sdk_version() >= sdk_version_number(0, 28, 0);
}

}  // namespace

struct Rest::Asked {
  Request request;
  std::atomic<bool> is_left = false;
};

namespace {

// How many rows take about kBytesAtOnce, where they are like those that the list has.
int64_t num_rows_at_once(const Listing& out) {
  return std::clamp<int64_t>(kBytesAtOnce * out.count() / out.num_bytes(), 1, kMostRows);
}

// What is left of it behind rows that were read, the last of this number.
ListPart part_behind(ListPart part, int64_t num_read, int64_t last_number) {
  part.limit -= num_read;
  part.offset = 0;
  part.below = last_number;
  return part;
}

// The page's rows, some at a time. The page as it came to be: one that was cut by bytes is so long
// as it is, so that the next one begins where it ends.
template <typename Fetch, typename ToJson>
ListPart fill_page(Listing& out, const ListPart page, const std::atomic<bool>& is_left, Fetch fetch,
                   ToJson to_json) {
  ListPart rest = page;
  int64_t at_once = kFirstRows;
  while (rest.limit > 0 && !is_left) {
    ListPart part = rest;
    part.limit = std::min(at_once, rest.limit);
    const auto rows = fetch(part);
    for (const auto& listed : rows) {
      if (!out.add(to_json(listed.row))) return {.limit = out.count(), .offset = page.offset};
    }
    if (std::ssize(rows) < part.limit) break;
    rest = part_behind(rest, part.limit, rows.back().number);
    at_once = num_rows_at_once(out);
  }
  return page;
}

Json cursor_json(ListPart page, int64_t total) {
  return JsonObject{{"offset", page.offset}, {"limit", page.limit}, {"total_count", total}};
}

int64_t num_rows_from(const ListPart& page, int64_t total) {
  return std::max<int64_t>(0, total - page.offset);
}

// The part of a page that a run has, without what it gets meanwhile.
ListPart existing_part(ListPart page, const CheckpointCount& all) {
  page.limit = std::min(page.limit, num_rows_from(page, all.count));
  page.below = all.newest + 1;
  return page;
}

const char* type_name(CheckpointKind kind) {
  if (kind == CheckpointKind::kWeights) return "training";
  return kind == CheckpointKind::kSampler ? "sampler" : "external";
}

// The last request of a run that trains may not be written down yet.
RunRow with_last_request(StateStore& store, const RunRow& row) {
  const auto live = row.state == RunState::kLive ? store.find_run(row.id) : std::nullopt;
  return live ? *live : row;
}

}  // namespace

JsonObject checkpoint_json(const CheckpointRow& row) {
  const TinkerPath path = path_of(row);
  JsonObject out = {
      {"checkpoint_id", path.checkpoint_id()}, {"checkpoint_type", type_name(row.kind)},
      {"time", rfc3339(row.created_at)},       {"tinker_path", path.text()},
      {"size_bytes", row.size_bytes},          {"public", row.is_public}};
  if (row.expires_at) out.add("expires_at", rfc3339(*row.expires_at));
  if (row.user_metadata) out.add("user_metadata", Json::written(*row.user_metadata));
  return out;
}

JsonObject Rest::load_run_json(const RunRow& row) {
  JsonObject out = {{"training_run_id", row.id},
                    {"base_model", row.base_model},
                    {"model_owner", row.tenant},
                    {"is_lora", true},
                    {"corrupted", false},
                    {"lora_rank", row.lora.rank},
                    {"last_request_time", rfc3339(row.last_request_at)}};
  const LastCheckpoints last = parts_.store_lists.find_last_checkpoints(row.id, wall_seconds());
  if (last.weights) out.add("last_checkpoint", checkpoint_json(*last.weights));
  if (last.sampler) out.add("last_sampler_checkpoint", checkpoint_json(*last.sampler));
  if (row.user_metadata) out.add("user_metadata", Json::written(*row.user_metadata));
  return out;
}

RunRow Rest::find_own_run(const Request& request, const std::string& id) {
  const auto row = parts_.store.find_run(id);
  if (!row || row->tenant != request.tenant) fail_missing("training run", id);
  return *row;
}

Listing Rest::make_listing(std::string_view name, const Asked& asked, int64_t most) const {
  Charge& charge = *asked.request.charge;
  return {name, charge, std::min(most, charge.limit(Use::kResponse).most() / kShare)};
}

Response Rest::list_runs(const Asked& asked) {
  const std::string& tenant = asked.request.tenant;
  check_access_scope(asked.request);
  const ListPart page = page_of(asked.request, 20);
  const std::string project = asked.request.query_parameter("project_id").value_or("");
  if (!project.empty()) check_project("project_id", project);
  Listing out = make_listing("training_runs", asked, kPageBytes);
  const ListPart shown = fill_page(
      out, page, asked.is_left,
      [&](ListPart part) { return parts_.store_lists.list_runs(tenant, project, part); },
      [&](const RunRow& row) { return load_run_json(with_last_request(parts_.store, row)); });
  out.add_field("cursor", cursor_json(shown, parts_.store_lists.count_runs(tenant, project)));
  return out.finish_response();
}

Response Rest::get_run(const Asked& asked) {
  check_access_scope(asked.request);
  return json_response(
      200, load_run_json(find_own_run(asked.request, asked.request.parts.at(0))).text());
}

// Clients that ask for no page want all, and read no cursor.
Response Rest::list_run_checkpoints(const Asked& asked) {
  const RunRow run = find_own_run(asked.request, asked.request.parts.at(0));
  const bool external = shows_external(asked.request);
  const bool is_paged = asked.request.query_parameter("limit").has_value();
  const double now = wall_seconds();
  const CheckpointCount all = parts_.store_lists.count_checkpoints_of(run.id, external, now);
  ListPart page = page_of(asked.request, 0);
  if (!is_paged) page.limit = num_rows_from(page, all.count);
  const ListPart wanted = existing_part(page, all);
  Listing out = make_listing("checkpoints", asked, is_paged ? kPageBytes : kWholeBytes);
  const ListPart shown = fill_page(
      out, wanted, asked.is_left,
      [&](ListPart part) {
        return parts_.store_lists.list_checkpoints_of(run, external, now, part);
      },
      checkpoint_json);
  if (shown.limit < wanted.limit) page.limit = shown.limit;
  out.add_field("cursor", cursor_json(page, all.count));
  return out.finish_response();
}

Response Rest::list_checkpoints(const Asked& asked) {
  const std::string& tenant = asked.request.tenant;
  const bool external = shows_external(asked.request);
  const double now = wall_seconds();
  Listing out = make_listing("checkpoints", asked, kPageBytes);
  const ListPart shown = fill_page(
      out, page_of(asked.request, 100), asked.is_left,
      [&](ListPart part) {
        return parts_.store_lists.list_checkpoints(tenant, external, now, part);
      },
      checkpoint_json);
  const int64_t total = parts_.store_lists.count_checkpoints(tenant, external, now);
  out.add_field("cursor", cursor_json(shown, total));
  return out.finish_response();
}

Response Rest::list_sessions(const Asked& asked) {
  check_access_scope(asked.request);
  Listing out = make_listing("sessions", asked, kUnbounded);
  const ListPart page = page_of(asked.request, 20);
  for (const std::string& id : parts_.store_lists.list_sessions(asked.request.tenant, page)) {
    if (!out.add(id)) break;
  }
  return out.finish_response();
}

// False where the list is full.
bool Rest::add_sampler_ids(const std::string& session, const std::atomic<bool>& is_left,
                           Listing& out) {
  for (int64_t after = -1; !is_left;) {
    const auto samplers = parts_.store_lists.list_samplers_of(session, after, kNamesAtOnce);
    for (const SamplerName& sampler : samplers) {
      if (!out.add(sampler.id)) return false;
      after = sampler.sampling_seq;
    }
    if (std::ssize(samplers) < kNamesAtOnce) break;
  }
  return true;
}

Response Rest::get_session(const Asked& asked) {
  check_access_scope(asked.request);
  const std::string& id = asked.request.parts.at(0);
  const auto row = parts_.store.find_session(id);
  if (!row || row->tenant != asked.request.tenant) fail_missing("session", id);
  Listing out("training_run_ids", *asked.request.charge, kUnbounded);
  for (const std::string& run : parts_.store_lists.list_runs_of(id)) {
    if (!out.add(run)) break;
  }
  out.begin_list("sampler_ids");
  if (!add_sampler_ids(id, asked.is_left, out)) return out.finish_response();
  if (row->user_metadata) out.add_field("user_metadata", Json::written(*row->user_metadata));
  if (row->display_name) out.add_field("display_name", *row->display_name);
  return out.finish_response();
}

void Rest::post_list(Request&& request, const Respond& respond, List list) {
  const std::string tenant = request.tenant;
  const auto asked = std::make_shared<Asked>();
  if (request.on_hang_up) *request.on_hang_up = [asked] { asked->is_left = true; };
  request.on_hang_up.reset();  // it holds `asked`
  asked->request = std::move(request);
  const auto answer = std::make_shared<Answer>(respond);
  const bool is_taken = parts_.lists.try_post(tenant, [this, asked, answer, list] {
    if (asked->is_left) return answer->give(error_response(400, "the client has gone"));
    answer->give(run_for_response([&] { return (this->*list)(*asked); }));
  });
  if (is_taken) return;
  answer->give(refuse(kTooManyLists));
}

}  // namespace strata::server
