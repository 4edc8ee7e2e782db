// SPDX-License-Identifier: Apache-2.0
#include "apps/bench/works.h"

#include <fmt/format.h>

#include "base/error.h"

namespace strata::apps {
namespace {

constexpr BenchWork kWorks[] = {
    {"train_s512", WorkKind::kTrain, 4, 512},
    {"train_s512_remat", WorkKind::kTrain, 4, 512, true},
    {"train_s2048_remat", WorkKind::kTrain, 1, 2048, true},
    {"train_s8192_remat", WorkKind::kTrain, 1, 8192, true},
    {"prefill512", WorkKind::kPrefill, 1, 512},
    {"prefill2048", WorkKind::kPrefill, 1, 2048},
    {"decode1", WorkKind::kDecode, 1, 128},
    {"decode8", WorkKind::kDecode, 8, 128},
    {"decode32", WorkKind::kDecode, 32, 128},
    {"lora8", WorkKind::kDecode, 8, 128, false, true},
    {"moe_train_s512", WorkKind::kTrain, 4, 512, false, false, BenchShape::kQwen3Moe},
    {"moe_prefill512", WorkKind::kPrefill, 1, 512, false, false, BenchShape::kQwen3Moe},
    {"moe_decode1", WorkKind::kDecode, 1, 128, false, false, BenchShape::kQwen3Moe},
    {"gdn_train_s2048", WorkKind::kTrain, 1, 2048, false, false, BenchShape::kDeltaNet},
    {"gdn_prefill4096", WorkKind::kPrefill, 1, 4096, false, false, BenchShape::kDeltaNet},
    {"gdn_decode1", WorkKind::kDecode, 1, 128, false, false, BenchShape::kDeltaNet},
    {"gdn_decode8", WorkKind::kDecode, 8, 128, false, false, BenchShape::kDeltaNet},
    {"dsv4_train_s2048", WorkKind::kTrain, 1, 2048, false, false, BenchShape::kDeepseekV4},
    {"dsv4_prefill4096", WorkKind::kPrefill, 1, 4096, false, false, BenchShape::kDeepseekV4},
    {"dsv4_decode1", WorkKind::kDecode, 1, 128, false, false, BenchShape::kDeepseekV4},
    {"mla_train_s512", WorkKind::kTrain, 4, 512, false, false, BenchShape::kLatent},
    {"mla_prefill512", WorkKind::kPrefill, 1, 512, false, false, BenchShape::kLatent},
    {"mla_decode1", WorkKind::kDecode, 1, 128, false, false, BenchShape::kLatent},
    {"oss_train_s512", WorkKind::kTrain, 4, 512, false, false, BenchShape::kGptOss},
    {"oss_prefill512", WorkKind::kPrefill, 1, 512, false, false, BenchShape::kGptOss},
    {"oss_decode1", WorkKind::kDecode, 1, 128, false, false, BenchShape::kGptOss},
    {"e4b_train_s512", WorkKind::kTrain, 4, 512, false, false, BenchShape::kGemma4},
    {"e4b_prefill512", WorkKind::kPrefill, 1, 512, false, false, BenchShape::kGemma4},
    {"e4b_decode1", WorkKind::kDecode, 1, 128, false, false, BenchShape::kGemma4},
};

}  // namespace

const BenchWork& find_bench_work(std::string_view name) {
  for (const BenchWork& work : kWorks) {
    if (work.name == name) return work;
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("bench: got '{}', want one of {}", name, bench_work_names()));
}

std::string bench_work_names() {
  std::string names;
  for (const BenchWork& work : kWorks)
    names += (names.empty() ? "" : ", ") + std::string(work.name);
  return names;
}

}  // namespace strata::apps
