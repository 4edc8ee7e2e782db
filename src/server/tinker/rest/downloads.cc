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
#include "base/busy.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "server/http/message.h"
#include "server/store/shown_text.h"
#include "server/tinker/refusals.h"
#include "server/tinker/rest/answer.h"
#include "server/tinker/rest/rest.h"

namespace strata::server {
namespace {

constexpr const char* kArchive = "archive.tar";
constexpr const char* kMergedArchive = "merged.tar";

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

// Nothing of none.
std::optional<Range> range_of_last(uint64_t num_bytes, uint64_t size) {
  if (num_bytes == 0 || size == 0) return std::nullopt;
  const uint64_t length = std::min(num_bytes, size);
  return Range{size - length, length};
}

// RFC 9110 14.2, one range. `is_honoured` false: the header asks for nothing that we honour, so the
// whole file is sent. No range in a header that is honoured: 416.
std::optional<Range> parse_range(std::string_view header, uint64_t size, bool& is_honoured) {
  constexpr std::string_view kUnit = "bytes=";
  is_honoured =
      lower(header.substr(0, kUnit.size())) == kUnit && header.find(',') == std::string_view::npos;
  if (!is_honoured) return std::nullopt;
  const std::string_view spec = header.substr(kUnit.size());
  const size_t dash = spec.find('-');
  if (dash == std::string_view::npos) {
    is_honoured = false;
    return std::nullopt;
  }
  const auto first = parse_number_clamped(spec.substr(0, dash));
  const auto last = parse_number_clamped(spec.substr(dash + 1));
  if (!first && dash == 0 && last) return range_of_last(*last, size);
  const bool open_ended = dash + 1 == spec.size();
  if (!first || (!last && !open_ended) || (last && *last < *first)) {
    is_honoured = false;
    return std::nullopt;
  }
  if (*first >= size) return std::nullopt;
  const uint64_t end = last ? std::min(*last, size - 1) : size - 1;
  return Range{*first, end - *first + 1};
}

Response unsatisfiable_range_response(uint64_t size) {
  Response refused = error_response(416, fmt::format("range: the file has {} bytes", size));
  refused.headers.push_back({"content-range", fmt::format("bytes */{}", size)});
  return refused;
}

Response whole_file_response(const std::string& name, FilePart file) {
  Response response;
  response.content_type = "application/octet-stream";
  response.headers = {{"cache-control", "no-store"},
                      {"accept-ranges", "bytes"},
                      {"content-disposition", fmt::format("attachment; filename=\"{}\"", name)}};
  response.file = std::move(file);
  return response;
}

// Leaves a response of the whole file, of `size` bytes, with this range of it.
void narrow_to_range(Response& response, const Range& range, uint64_t size) {
  response.status = 206;
  response.file->offset = range.offset;
  response.file->length = range.length;
  response.headers.push_back({"content-range", fmt::format("bytes {}-{}/{}", range.offset,
                                                           range.offset + range.length - 1, size)});
}

// `tenant`: whose URL it is.
Response file_response(const std::string& path, const std::string& name, std::string_view range,
                       const std::string& tenant) {
  std::error_code fault;
  const uint64_t size = std::filesystem::file_size(path, fault);
  if (fault) return error_response(410, "this file is gone");
  Response response = whole_file_response(name, FilePart{path, 0, size, tenant});
  bool is_honoured = false;
  const auto part = parse_range(range, size, is_honoured);
  if (!is_honoured) return response;
  if (!part) return unsatisfiable_range_response(size);
  narrow_to_range(response, *part, size);
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
  const std::string told = is_hidden ? "the server's log says why not" : fault.what();
  if (code == ErrorCode::kInvalidArgument || code == ErrorCode::kUnsupported)
    return error_response(400, "archive: merged: " + told);
  return code == ErrorCode::kResourceExhausted ? refuse(kNoSpaceForMerge, {told})
                                               : refuse(kMergeFailed);
}

// Why there is no archive: what it cannot hold, or what may be otherwise in a moment.
Response archive_fault_response(const std::exception& fault) {
  const auto* error = dynamic_cast<const Error*>(&fault);
  if (error != nullptr && error->code == ErrorCode::kUnsupported)
    return error_response(413, error->what());
  return refuse(kArchiveFailed);
}

void log_fault(const CheckpointRow& row, bool is_merged, const std::exception& fault) {
  log(LogLevel::kError, fmt::format("{}archive of {}: {}", is_merged ? "merged " : "",
                                    path_of(row).text(), fault.what()));
}

// Logs why an archive could not be packed, and gives the answer to that.
Response pack_fault_response(const CheckpointRow& row, bool is_merged, const std::exception& fault,
                             std::span<const std::string> folders) {
  if (dynamic_cast<const Busy*>(&fault) != nullptr)
    return refuse(kNoSpaceForArchive, {fault.what()});
  log_fault(row, is_merged, fault);
  return is_merged ? merge_fault_response(fault, folders) : archive_fault_response(fault);
}

UrlSigner::Claim read_claim(const Request& request) {
  const auto query = [&](const char* name) { return request.query_parameter(name).value_or(""); };
  return {request.parts.at(0), request.parts.at(1), query("expires"), query("tenant"),
          query("token")};
}

std::optional<Response> verdict_refusal(UrlSigner::Verdict verdict) {
  switch (verdict) {
    case UrlSigner::Verdict::kWrong:
      return error_response(404, "no such file, or its token is wrong");
    case UrlSigner::Verdict::kGone:
      return error_response(410, "this URL has expired, or its checkpoint was deleted");
    case UrlSigner::Verdict::kGood:
      break;
  }
  return std::nullopt;
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
  answer_on_worker(request, respond,
                   [this, row, base_url = request.base_url, tenant = request.tenant] {
                     return json_response(200, file_urls_json(row, base_url, tenant));
                   });
}

std::string Rest::file_urls_json(const CheckpointRow& row, const std::string& base_url,
                                 const std::string& tenant) const {
  const double now = wall_seconds();
  const int64_t expires = parts_.signer.expiry(row, now);
  JsonObject urls;
  for (const CheckpointFile& file : parts_.registry.list_downloadable_files(row)) {
    urls.add(file.name,
             parts_.signer.make_signed_url(base_url, row, file.name, tenant, expires, now));
  }
  return JsonObject{{"urls", urls}, {"expires", rfc3339(static_cast<double>(expires))}}.text();
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
    answer->give(pack_fault_response(row, is_merged, *fault, parts_.folders));
  };
  if (!try_post_packing(row, of, request.tenant, packed)) answer->give(refuse(kTooManyArchives));
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
    const std::string why = why_not_mergeable(row);
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

std::string Rest::why_not_mergeable(const CheckpointRow& row) const {
  if (!parts_.merger) {
    return "archive: merged: this server hands out no merged models (serve --merged); download the "
           "adapter's archive and merge it: strata merge --adapter FILE.tar";
  }
  if (model_of(row)) return "";
  return fmt::format(
      "archive: merged: the model that this checkpoint was trained on, '{}', is not served",
      row.base_model);
}

bool Rest::ensure_packed(const CheckpointRow& row, Archive of, const std::string& tenant) {
  if (of == Archive::kMerged) {
    return parts_.registry.ensure_merged_archive(row, parts_.merger, model_of(row).value(), tenant,
                                                 now_seconds());
  }
  parts_.registry.ensure_archive(row, tenant, now_seconds());
  return true;
}

bool Rest::try_post_packing(const CheckpointRow& row, Archive of, const std::string& tenant,
                            const Packed& packed) {
  Worker& worker = of == Archive::kMerged ? parts_.merges : parts_.archives;
  // Leased here: between now and the job a sweep may come.
  return worker.try_post(tenant,
                         [this, row, of, tenant, packed, held = parts_.registry.lease(row.id)] {
                           bool is_made = true;
                           try {
                             is_made = ensure_packed(row, of, tenant);
                           } catch (const std::exception& error) {
                             return packed(false, &error);
                           }
                           packed(is_made, nullptr);
                         });
}

// For a URL that is older than the archive: a restart empties tmp, and old archives go.
void Rest::request_repack(const CheckpointRow& row, const std::string& tenant, Archive of) {
  const Packing::Key key(row.id, of);
  if (!packing_->try_add(key)) return;
  // In line or refused, once it is through it may be asked for again.
  const auto forget = [packing = packing_, key] { packing->remove(key); };
  const auto packed = [forget, row, of](bool, const std::exception* fault) {
    if (fault != nullptr) log_fault(row, of == Archive::kMerged, *fault);
    forget();
  };
  if (!try_post_packing(row, of, tenant, packed)) forget();
}

Response Rest::serve_archive(const CheckpointRow& row, const UrlSigner::Claim& claim,
                             const std::string& tenant, std::string_view range) {
  const Archive of = claim.file == kMergedArchive ? Archive::kMerged : Archive::kCheckpoint;
  const std::optional<std::string> made = parts_.registry.touch_archive(row, now_seconds(), of);
  if (made) return file_response(*made, claim.file, range, claim.tenant_number);
  if (of == Archive::kMerged && !why_not_mergeable(row).empty()) {
    return error_response(410, "this server makes no such merged model any more");
  }
  request_repack(row, tenant, of);
  return refuse(kArchiveIsPacked);
}

Response Rest::claimed_file_response(const CheckpointRow& row, const UrlSigner::Claim& claim,
                                     const std::string& tenant, std::string_view range) {
  if (claim.file == kArchive || claim.file == kMergedArchive)
    return serve_archive(row, claim, tenant, range);
  // Only names that were signed come here, so the name is one of ours.
  return file_response(parts_.registry.folder(row) + "/" + claim.file, claim.file, range,
                       claim.tenant_number);
}

void Rest::download_file(const Request& request, const Respond& respond) {
  const UrlSigner::Claim claim = read_claim(request);
  std::optional<CheckpointRow> row;
  std::string tenant;
  const auto verdict = parts_.signer.verify_claim(claim, wall_seconds(), row, tenant);
  if (auto refused = verdict_refusal(verdict)) return respond(std::move(*refused));
  // No validator is ever sent, so If-Range names another file than this one.
  std::string range =
      request.header("if-range").empty() ? std::string(request.header("range")) : "";
  const auto answer = std::make_shared<Answer>(respond);
  const auto find_file = [this, claim, row = *row, tenant, range = std::move(range)] {
    return claimed_file_response(row, claim, tenant, range);
  };
  const bool is_taken = parts_.reads.try_post(
      tenant, [answer, find_file] { answer->give(run_for_response(find_file)); });
  if (!is_taken) answer->give(refuse(kTooManyDownloadsWait));
}

}  // namespace strata::server
