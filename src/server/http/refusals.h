// SPDX-License-Identifier: Apache-2.0
// What connections, and the bytes that come and go on them, are refused for.
#pragma once
#include "server/http/refusal.h"

namespace strata::server {

constexpr Refusal kTooManyConnections = {
    Stage::kConnection, 503,
    "--max-connections, --max-connections-per-address, --max-connection-bytes",
    "too many connections ({})"};
constexpr Refusal kTooManyOfClient = {Stage::kHeader, 503,
                                      "--max-connections-per-address, --max-connection-bytes",
                                      "too many requests of this client at once ({})"};
constexpr Refusal kNoSpaceForHeader = {
    Stage::kHeader, 503, "--max-connection-bytes",
    "there is no space for a header so long (--max-connection-bytes)"};
constexpr Refusal kTooManyInFlight = {
    Stage::kHeader, 429, "--max-connection-bytes",
    "as many requests of this tenant are being answered as may be at once "
    "(--max-connection-bytes); send it again when some have been"};
// 429 of data and samples, which are sent again by themselves.
constexpr Refusal kNoSpaceForBody = {
    Stage::kBody, 429, "--max-body-bytes",
    "{held} bytes of bodies of this tenant are being read, and there is no space for {wanted} more "
    "(--max-body-bytes {limit}); send this again when those have been answered",
    /*other_status=*/503};
// What a Busy says (base/busy.h): the memory of JSON is counted on a floor that knows no request.
constexpr Refusal kBusy = {Stage::kBody, 429, "--max-body-bytes", "{}"};
constexpr Refusal kStateIsAway = {
    Stage::kAdmission,
    503,
    "",
    "the server cannot write its state now (disk full, or its database is away)",
    /*other_status=*/0,
    /*retry_seconds=*/5};
// 429 of what was posted.
constexpr Refusal kNoSpaceForResponse = {
    Stage::kAnswer, 429, "--max-response-bytes",
    "the response has {wanted} bytes, and {held} of this tenant's are being sent "
    "(--max-response-bytes {limit}); read those, then send this again",
    /*other_status=*/503};
constexpr Refusal kNoSpaceForStream = {Stage::kAnswer, 429, "--max-response-bytes",
                                       "{held} bytes of this tenant's responses are being sent "
                                       "(--max-response-bytes {limit}); read those, "
                                       "then send this again",
                                       /*other_status=*/503};
constexpr Refusal kTooManyDownloads = {
    Stage::kDownload, 429, "--max-downloads-per-tenant",
    "{} files are being sent for this tenant (--max-downloads-per-tenant)"};
constexpr Refusal kNoSpaceForDownload = {
    Stage::kDownload, 503, "--max-download-bytes",
    "there is no space to send one more file (--max-download-bytes {limit})"};

constexpr const Refusal* kHttpRefusals[] = {
    &kTooManyConnections, &kTooManyOfClient,    &kNoSpaceForHeader,
    &kTooManyInFlight,    &kNoSpaceForBody,     &kBusy,
    &kStateIsAway,        &kNoSpaceForResponse, &kNoSpaceForStream,
    &kTooManyDownloads,   &kNoSpaceForDownload};

}  // namespace strata::server
