// SPDX-License-Identifier: Apache-2.0
// The options that each mode of `strata plan` reads, and those that it cannot do without. Lists.
#pragma once
#include <string_view>

namespace strata::apps {

inline constexpr std::string_view kOfPipelines[] = {
    "schedule",     "pipeline",       "microbatches", "chunks", "forwarding-delay",
    "schedule-out", "with-transfers", "trace",        "json"};
inline constexpr std::string_view kOfServing[] = {
    "model",  "offload",       "memory", "expert-rank", "max-rank",     "dtype",  "threads",
    "device", "strict-config", "json",   "speculate",   "draft-tokens", "weights"};
inline constexpr std::string_view kOfStages[] = {"model",
                                                 "tokens",
                                                 "memory",
                                                 "method",
                                                 "rank",
                                                 "expert-rank",
                                                 "targets",
                                                 "recompute",
                                                 "dtype",
                                                 "weights",
                                                 "threads",
                                                 "device",
                                                 "strict-config",
                                                 "offload",
                                                 "mtp",
                                                 "stages",
                                                 "microbatches",
                                                 "chunks",
                                                 "json",
                                                 "machine",
                                                 "save-machine",
                                                 "forwarding-delay",
                                                 "leftovers",
                                                 "pipeline-schedule",
                                                 "layers-per-stage",
                                                 "recompute-iterations",
                                                 "recompute-layers"};
inline constexpr std::string_view kOfTraining[] = {"model",
                                                   "tokens",
                                                   "memory",
                                                   "method",
                                                   "rank",
                                                   "expert-rank",
                                                   "targets",
                                                   "micro-tokens",
                                                   "recompute",
                                                   "dtype",
                                                   "threads",
                                                   "device",
                                                   "strict-config",
                                                   "svg",
                                                   "offload",
                                                   "mtp",
                                                   "indexer-loss",
                                                   "json",
                                                   "machine",
                                                   "save-machine",
                                                   "weights",
                                                   "ranks",
                                                   "shard-weights",
                                                   "microbatches",
                                                   "chunks",
                                                   "forwarding-delay",
                                                   "leftovers",
                                                   "pipeline-schedule",
                                                   "layers-per-stage",
                                                   "recompute-iterations",
                                                   "recompute-layers"};

inline constexpr std::string_view kModel[] = {"model"};
inline constexpr std::string_view kModelAndTokens[] = {"model", "tokens"};
inline constexpr std::string_view kModelTokensAndStages[] = {"model", "tokens", "stages"};
inline constexpr std::string_view kScheduleAndSize[] = {"schedule", "pipeline", "microbatches"};

}  // namespace strata::apps
