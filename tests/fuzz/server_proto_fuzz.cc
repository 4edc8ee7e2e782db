// A binary body of forward_backward, and the stability records it may name: any bytes are a command
// that keeps its invariants, or an Error.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "server/protocol/forward_backward.h"

namespace {

using strata::server::SampleRecord;

void require(bool condition) {
  if (!condition) std::abort();
}

void check(const strata::api::ForwardBackward& command) {
  for (const strata::api::Datum& datum : command.data) {
    require(!datum.tokens.empty());
    const size_t targets =
        datum.tokens.size() * static_cast<size_t>(datum.num_targets > 0 ? datum.num_targets : 1);
    require(datum.targets.empty() || datum.targets.size() == targets);
    require(datum.weights.empty() || datum.weights.size() == datum.targets.size());
    for (const auto* values : {&datum.logprobs, &datum.advantages, &datum.mask}) {
      require(values->empty() || values->size() == datum.tokens.size());
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const SampleRecord record{.prompt = {1, 2, 3}, .tokens = {4, 5}, .logprobs = {-1.0f, -2.0f}};
  try {
    strata::server::ForwardBackwardBody body(bytes, strata::server::PassForm::kBinary);
    const strata::api::ForwardBackward command =
        body.build([&](const std::string& id) -> std::optional<SampleRecord> {
          if (id.empty()) return std::nullopt;
          return record;
        });
    check(command);
    require(strata::server::fingerprint_of(command) == strata::server::fingerprint_of(command));
  } catch (const strata::Error&) {
  }
  if (const auto unpacked = strata::server::unpack_record(bytes)) {
    require(unpacked->tokens.size() == unpacked->logprobs.size());
    const auto again = strata::server::unpack_record(strata::server::pack_record(*unpacked));
    require(again.has_value() && again->tokens == unpacked->tokens &&
            again->prompt == unpacked->prompt);
  }
  return 0;
}
