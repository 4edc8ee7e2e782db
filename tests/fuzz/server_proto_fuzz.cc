// SPDX-License-Identifier: Apache-2.0
// A binary body of forward_backward, and the stability records it may name: any bytes are a command
// that keeps its invariants, or an Error, and means what the protobuf library reads in them.
#include <google/protobuf/stubs/logging.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "server/tinker/protocol/stability_record.h"
#include "tests/fuzz/pass_check.h"
#include "tests/server/tinker/protocol/data_message_check.h"

namespace {

using strata::fuzz::require;
using strata::server::SampleRecord;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  google::protobuf::SetLogHandler(nullptr);  // it would tell of every string that is not UTF-8
  require(strata::server::testing::agrees_with_protobuf(bytes));
  const SampleRecord record{.prompt = {1, 2, 3}, .tokens = {4, 5}, .logprobs = {-1.0f, -2.0f}};
  try {
    strata::server::ForwardBackwardBody body(bytes, strata::server::DataForm::kBinary);
    const strata::api::ForwardBackward command =
        body.build({.elements = 1 << 16, .record_bytes = 1 << 16},
                   [&](const std::string& id) -> std::optional<SampleRecord> {
                     if (id.empty()) return std::nullopt;
                     return record;
                   });
    strata::fuzz::check_pass(command);
  } catch (const strata::Error&) {
  }
  if (const auto unpacked = strata::server::unpack_record(bytes))
    require(unpacked->tokens.size() == unpacked->logprobs.size());
  return 0;
}
