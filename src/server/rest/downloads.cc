// SPDX-License-Identifier: Apache-2.0
// Downloads: signed URLs, and the files behind them with ranges.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <limits>
#include <span>
#include <utility>

#include "base/ascii.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "server/busy.h"
#include "server/http/message.h"
#include "server/rest/answer.h"
#include "server/rest/rest.h"
#include "server/shown_text.h"

namespace strata::server {
namespace {

constexpr const char* kArchive = "archive.tar";
constexpr const char* kMergedArchive = "merged.tar";
constexpr const char* kManyArchives =
    "too many archives of this tenant are being packed; ask again when some have been answered";

struct Range {
  uint64_t offset = 0;
  uint64_t length = 0;
};

// A number too large for its type is the largest.
std::optional<uint64_t> parse_number_clamped(std::string_view text) {
  uint64_t value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_number = error == std::errc{} || error == std::errc::result_out_of_range;
  if (!is_number || rest != text.data() + text.size()) return std::nullopt;
  if (error != std::errc{}) return std::numeric_limits<uint64_t>::max();
  return value;
}

// RFC 9110 14.2, one range. `use` false: the header asks for nothing that we honour, so the whole
// file is sent. No range in a header that is honoured: 416.
std::optional<Range> parse_range(std::string_view header, uint64_t size, bool& use) {
  constexpr std::string_view kUnit = "bytes=";
  use =
      lower(header.substr(0, kUnit.size())) == kUnit && header.find(',') == std::string_view::npos;
  if (!use) return std::nullopt;
  const std::string_view spec = header.substr(kUnit.size());
  const size_t dash = spec.find('-');
  if (dash == std::string_view::npos) {
    use = false;
    return std::nullopt;
  }
  const auto first = parse_number_clamped(spec.substr(0, dash));
  const auto last = parse_number_clamped(spec.substr(dash + 1));
  if (!first && dash == 0 && last) {  // the last bytes
    if (*last == 0 || size == 0) return std::nullopt;
    const uint64_t length = std::min(*last, size);
    return Range{size - length, length};
  }
  const bool open_ended = dash + 1 == spec.size();
  if (!first || (!last && !open_ended) || (last && *last < *first)) {
    use = false;
    return std::nullopt;
  }
  if (*first >= size) return std::nullopt;
  const uint64_t end = last ? std::min(*last, size - 1) : size - 1;
  return Range{*first, end - *first + 1};
}

// `tenant`: whose URL it is.
Response file_response(const std::string& path, const std::string& name, std::string_view range,
                       const std::string& tenant) {
  std::error_code fault;
  const uint64_t size = std::filesystem::file_size(path, fault);
  if (fault) return error_response(410, "this file is gone");
  Response response;
  response.content_type = "application/octet-stream";
  response.headers = {{"cache-control", "no-store"},
                      {"accept-ranges", "bytes"},
                      {"content-disposition", fmt::format("attachment; filename=\"{}\"", name)}};
  response.file = FilePart{path, 0, size, tenant};
  bool use = false;
  const auto part = parse_range(range, size, use);
  if (!use) return response;
  if (!part) {
    Response refused = error_response(416, fmt::format("range: the file has {} bytes", size));
    refused.headers.push_back({"content-range", fmt::format("bytes */{}", size)});
    return refused;
  }
  response.status = 206;
  response.file = FilePart{path, part->offset, part->length, tenant};
  response.headers.push_back({"content-range", fmt::format("bytes {}-{}/{}", part->offset,
                                                           part->offset + part->length - 1, size)});
  return response;
}

bool wants_merged(const Request& request) {
  const std::string text = request.query_parameter("merged").value_or("false");
  if (text == "true" || text == "1") return true;
  if (text == "false" || text == "0") return false;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("merged: got '{}', want true or false", shown_text(text, 40)));
}

// Why there is no merged model; where things lie on this machine changes what is told alone.
Response merge_fault_response(const std::exception& fault, std::span<const std::string> folders) {
  const auto* error = dynamic_cast<const Error*>(&fault);
  const ErrorCode code = error != nullptr ? error->code : ErrorCode::kIo;
  const bool is_hidden = names_folder(fault.what(), folders);
  const std::string told = std::string("archive: merged: ") +
                           (is_hidden ? "the server's log says why not" : fault.what());
  if (code == ErrorCode::kInvalidArgument || code == ErrorCode::kUnsupported)
    return error_response(400, told);
  if (code == ErrorCode::kResourceExhausted) return busy_response(503, told, 60);
  return busy_response(503, "the merged model could not be written", 5);
}

// Why there is no archive: what it cannot hold, or what may be otherwise in a moment.
Response archive_fault_response(const std::exception& fault) {
  const auto* error = dynamic_cast<const Error*>(&fault);
  if (error != nullptr && error->code == ErrorCode::kUnsupported)
    return error_response(413, error->what());
  return busy_response(503, "the archive could not be written", 5);
}

void log_fault(const CheckpointRow& row, bool is_merged, const std::exception& fault) {
  log(LogLevel::kError, fmt::format("{}archive of {}: {}", is_merged ? "merged " : "",
                                    path_of(row).text(), fault.what()));
}

}  // namespace

void Rest::get_external_urls(const Request& request, const Respond& respond) {
  const CheckpointRow row = find_checkpoint(request, /*may_be_public=*/true);
  if (row.kind != CheckpointKind::kExternal) {
    return respond(
        error_response(400, fmt::format("{}: only external_weights have such URLs; save with "
                                        "save_weights_external",
                                        path_of(row).text())));
  }
  const auto urls_of = [this, row, base_url = request.base_url, tenant = request.tenant] {
    const double now = wall_seconds();
    const int64_t expires = parts_.signer.expiry(row, now);
    JsonObject urls;
    for (const CheckpointFile& file : parts_.registry.list_downloadable_files(row)) {
      urls.add(file.name,
               parts_.signer.make_signed_url(base_url, row, file.name, tenant, expires, now));
    }
    return json_response(
        200, JsonObject{{"urls", urls}, {"expires", rfc3339(static_cast<double>(expires))}}.text());
  };
  answer_on_worker(request, respond, urls_of);
}

void Rest::get_archive_url(const Request& request, const Respond& respond) {
  const CheckpointRow row = find_checkpoint(request, /*may_be_public=*/true);
  if (row.kind == CheckpointKind::kExternal) {
    return respond(error_response(400,
                                  "archive: external weights are fetched file by file "
                                  "(external_weights_urls)"));
  }
  const Archive of = wants_merged(request) ? Archive::kMerged : Archive::kCheckpoint;
  const bool is_merged = of == Archive::kMerged;
  if (auto refused = archive_refusal(row, of)) return respond(std::move(*refused));
  const std::string reply = archive_url_json(request, row, of);
  const auto answer = std::make_shared<Answer>(respond);
  const auto packed = [this, row, is_merged, reply, answer](bool is_made,
                                                            const std::exception* fault) {
    if (is_made) return answer->give(json_response(200, reply));
    if (fault == nullptr) return;
    if (dynamic_cast<const Busy*>(fault) != nullptr)
      return answer->give(busy_response(429, fault->what(), 5));
    log_fault(row, is_merged, *fault);
    answer->give(is_merged ? merge_fault_response(*fault, parts_.folders)
                           : archive_fault_response(*fault));
  };
  if (!try_post_packing(row, of, request.tenant, packed))
    answer->give(busy_response(429, kManyArchives, 5));
}

std::string Rest::archive_url_json(const Request& request, const CheckpointRow& row,
                                   Archive of) const {
  const double now = wall_seconds();
  const int64_t expires = parts_.signer.expiry(row, now);
  const char* file = of == Archive::kMerged ? kMergedArchive : kArchive;
  const std::string url =
      parts_.signer.make_signed_url(request.base_url, row, file, request.tenant, expires, now);
  return JsonObject{{"url", url}, {"expires", rfc3339(static_cast<double>(expires))}}.text();
}

std::optional<Response> Rest::archive_refusal(const CheckpointRow& row, Archive of) const {
  if (of == Archive::kMerged) {
    const std::string why = why_not_merged(row);
    return why.empty() ? std::nullopt : std::optional(error_response(400, why));
  }
  if (parts_.registry.fits_archive(row)) return std::nullopt;
  return error_response(
      413, fmt::format("archive: the checkpoint has {} bytes, more than this tenant's archives "
                       "may have (--max-archive-bytes); save_weights_external has no such limit",
                       row.size_bytes));
}

std::optional<size_t> Rest::model_of(const CheckpointRow& row) const {
  const BaseName* name = parts_.names.find(row.base_model);
  if (name == nullptr || !name->adapter.empty()) return std::nullopt;
  return static_cast<size_t>(name->model);
}

std::string Rest::why_not_merged(const CheckpointRow& row) const {
  if (!parts_.merger) {
    return "archive: merged: this server hands out no merged models (serve --merged); download the "
           "adapter's archive and merge it: strata merge --adapter FILE.tar";
  }
  if (model_of(row)) return "";
  return fmt::format(
      "archive: merged: the model that this checkpoint was trained on, '{}', is not served",
      row.base_model);
}

bool Rest::try_post_packing(const CheckpointRow& row, Archive of, const std::string& tenant,
                            const Packed& packed) {
  const bool is_merged = of == Archive::kMerged;
  Worker& worker = is_merged ? parts_.merges : parts_.archives;
  // Leased here: between now and the job a sweep may come.
  return worker.try_post(
      tenant, [this, row, is_merged, tenant, packed, held = parts_.registry.lease(row.id)] {
        bool is_made = true;
        try {
          if (is_merged) {
            is_made = parts_.registry.find_or_pack_merged(row, parts_.merger, model_of(row).value(),
                                                          tenant, now_seconds());
          } else {
            parts_.registry.find_or_pack_archive(row, tenant, now_seconds());
          }
        } catch (const std::exception& error) {
          return packed(false, &error);
        }
        packed(is_made, nullptr);
      });
}

// For a URL that is older than the archive: a restart empties tmp, and old archives go.
void Rest::repack_unless_pending(const CheckpointRow& row, const std::string& tenant, Archive of) {
  const std::pair key(row.id, of);
  {
    const MutexLock lock(packing_->mutex);
    if (!packing_->ids.insert(key).second) return;
  }
  // In line or refused, once it is through it may be asked for again.
  const auto forget = [packing = packing_, key] {
    const MutexLock lock(packing->mutex);
    packing->ids.erase(key);
  };
  const auto packed = [forget, row, of](bool, const std::exception* fault) {
    if (fault != nullptr) log_fault(row, of == Archive::kMerged, *fault);
    forget();
  };
  if (!try_post_packing(row, of, tenant, packed)) forget();
}

Response Rest::archive_response_or_pack(const CheckpointRow& row, const UrlSigner::Claim& claim,
                                        const std::string& tenant, std::string_view range) {
  const Archive of = claim.file == kMergedArchive ? Archive::kMerged : Archive::kCheckpoint;
  const std::optional<std::string> made =
      parts_.registry.find_and_touch_archive(row, now_seconds(), of);
  if (made) return file_response(*made, claim.file, range, claim.tenant_number);
  if (of == Archive::kMerged && !why_not_merged(row).empty()) {
    return error_response(410, "this server makes no such merged model any more");
  }
  repack_unless_pending(row, tenant, of);
  return busy_response(503, "the archive is being packed");
}

void Rest::download_file(const Request& request, const Respond& respond) {
  const auto query = [&](const char* name) { return request.query_parameter(name).value_or(""); };
  const UrlSigner::Claim claim{request.parts.at(0), request.parts.at(1), query("expires"),
                               query("tenant"), query("token")};
  std::optional<CheckpointRow> row;
  std::string tenant;
  switch (parts_.signer.verify_claim(claim, wall_seconds(), row, tenant)) {
    case UrlSigner::Verdict::kWrong:
      return respond(error_response(404, "no such file, or its token is wrong"));
    case UrlSigner::Verdict::kGone:
      return respond(error_response(410, "this URL has expired, or its checkpoint was deleted"));
    case UrlSigner::Verdict::kGood:
      break;
  }
  // No validator is ever sent, so If-Range names another file than this one.
  std::string range =
      request.header("if-range").empty() ? std::string(request.header("range")) : "";
  const auto answer = std::make_shared<Answer>(respond);
  // Only names that were signed come here, so the name is one of ours.
  const auto find_file = [this, claim, row = *row, tenant, range = std::move(range)] {
    if (claim.file == kArchive || claim.file == kMergedArchive) {
      return archive_response_or_pack(row, claim, tenant, range);
    }
    return file_response(parts_.registry.folder(row) + "/" + claim.file, claim.file, range,
                         claim.tenant_number);
  };
  const bool is_taken = parts_.reads.try_post(
      tenant, [answer, find_file] { answer->give(run_for_response(find_file)); });
  if (!is_taken) answer->give(busy_response(429, "too many downloads of this tenant wait", 5));
}

}  // namespace strata::server
