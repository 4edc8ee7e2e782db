// SPDX-License-Identifier: Apache-2.0
// What a tenant's requests are refused for behind their bodies.
#pragma once
#include "server/http/refusals.h"

namespace strata::server {

constexpr Refusal kStopping = {Stage::kAdmission, 503, "", "the server is shutting down"};
constexpr Refusal kServerIsBehind = {
    Stage::kAdmission, 503, "",
    "the server is {:.1f} s behind; data and samples wait until it is not"};
// The wait is until there is enough.
constexpr Refusal kOverRate = {
    Stage::kAdmission, 429, "--rate",
    "tenant '{}' has no more than {:g} {} a second (--rate {}); send this again in {:.0f} s{}"};
// An operator may raise it at any time.
constexpr Refusal kOverQuota = {
    Stage::kAdmission,
    429,
    "--quota",
    "tenant '{}' has a quota of {:.0f} {} (--quota {}): {} are used, {} more are held for what is "
    "under way, and this takes up to {}; {}",
    /*other_status=*/0,
    /*retry_seconds=*/60};
// What a key that may not train is told.
constexpr Refusal kTooManySessionsForScope = {
    Stage::kAdmission, 429, "--max-sessions-per-tenant",
    "create_session: {} sessions of this tenant are alive, and a {} key takes no more than three "
    "quarters of them (--max-sessions-per-tenant {}); finish some"};
constexpr Refusal kTooManySessions = {
    Stage::kAdmission, 429, "--max-sessions-per-tenant",
    "create_session: {} sessions are alive (--max-sessions-per-tenant); finish some, or wait until "
    "those without a sign of life end"};
constexpr Refusal kTooManySamplers = {
    Stage::kAdmission,
    429,
    "--max-samplers-per-tenant",
    "{} sampling sessions of this tenant are kept (--max-samplers-per-tenant); use those again, or "
    "finish sessions: theirs go then",
    /*other_status=*/0,
    /*retry_seconds=*/10};
// Those on unsaved weights cannot make way.
constexpr Refusal kNoSpaceForSampler = {
    Stage::kAdmission, 429, "--max-remembered-bytes",
    "sampling sessions on unsaved weights fill what this tenant may hold of them "
    "(--max-remembered-bytes); finish sessions that are not used any more, or sample from saved "
    "weights"};
constexpr Refusal kTooManyChanges = {
    Stage::kQueue, 429, "",
    "too many changes of this tenant's sessions and checkpoints wait for the disk; send this again "
    "when some have been answered"};
constexpr Refusal kTooManyLists = {
    Stage::kQueue, 429, "",
    "too many lists of this tenant wait to be read; send this again when some have been answered"};
// 400 of the making of a model, which nobody sends again.
constexpr Refusal kQueueIsFull = {
    Stage::kQueue, 429, "--max-queued-samples, --max-queued-bytes, --max-queued-operations",
    "the queue is full (--max-queued-samples, --max-queued-bytes, --max-queued-operations): send "
    "it again when results have come",
    /*other_status=*/400};
constexpr Refusal kTooManySchemas = {
    Stage::kQueue, 429, "",
    "too many schemas of this tenant wait to be compiled; send this again when some have been"};
constexpr Refusal kNoSpaceForSchema = {
    Stage::kQueue, 429, "--max-schema-bytes",
    "schemas of answers that are being made fill what this tenant may hold (--max-schema-bytes); "
    "send this again when some have been answered"};
constexpr Refusal kNoSpaceForResult = {
    Stage::kQueue, 429, "--max-result-bytes",
    "results wait to be fetched and fill what this tenant may hold (--max-result-bytes); fetch "
    "them first"};
constexpr Refusal kTooManyPolls = {
    Stage::kPoll, 429, "--max-parked",
    "{held} polls of this tenant are waiting already, {all} in all (--max-parked {limit})"};
constexpr Refusal kNoSpaceForList = {
    Stage::kAnswer, 503, "--max-response-bytes",
    "there is no space to make this list: {held} bytes of this tenant's responses are made or sent "
    "(--max-response-bytes {limit}); read those, then send this again"};
constexpr Refusal kTooManyArchives = {
    Stage::kDownload,
    429,
    "",
    "too many archives of this tenant are being packed; ask again when some have been answered",
    /*other_status=*/0,
    /*retry_seconds=*/5};
// What a Busy of the archives says.
constexpr Refusal kNoSpaceForArchive = {Stage::kDownload,      429,
                                        "--max-archive-bytes", "{}",
                                        /*other_status=*/0,    /*retry_seconds=*/5};
constexpr Refusal kArchiveFailed = {Stage::kDownload,   503, "", "the archive could not be written",
                                    /*other_status=*/0,
                                    /*retry_seconds=*/5};
constexpr Refusal kMergeFailed = {
    Stage::kDownload,   503, "", "the merged model could not be written",
    /*other_status=*/0,
    /*retry_seconds=*/5};
// A disk that is full, or a model that memory does not hold.
constexpr Refusal kNoSpaceForMerge = {Stage::kDownload,    503, "", "archive: merged: {}",
                                      /*other_status=*/0,
                                      /*retry_seconds=*/60};
constexpr Refusal kArchiveIsPacked = {Stage::kDownload, 503, "", "the archive is being packed"};
constexpr Refusal kTooManyDownloadsWait = {
    Stage::kDownload,   429, "", "too many downloads of this tenant wait",
    /*other_status=*/0,
    /*retry_seconds=*/5};

constexpr const Refusal* kTinkerRefusals[] = {&kStopping,
                                              &kServerIsBehind,
                                              &kOverRate,
                                              &kOverQuota,
                                              &kTooManySessionsForScope,
                                              &kTooManySessions,
                                              &kTooManySamplers,
                                              &kNoSpaceForSampler,
                                              &kTooManyChanges,
                                              &kTooManyLists,
                                              &kQueueIsFull,
                                              &kTooManySchemas,
                                              &kNoSpaceForSchema,
                                              &kNoSpaceForResult,
                                              &kTooManyPolls,
                                              &kNoSpaceForList,
                                              &kTooManyArchives,
                                              &kNoSpaceForArchive,
                                              &kArchiveFailed,
                                              &kMergeFailed,
                                              &kNoSpaceForMerge,
                                              &kArchiveIsPacked,
                                              &kTooManyDownloadsWait};

}  // namespace strata::server
