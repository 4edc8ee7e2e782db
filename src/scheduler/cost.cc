// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cost.h"

#include <algorithm>

namespace strata::scheduler {
namespace {

constexpr int64_t kBookkeeping = 1024;  // its places in queues and maps, its future

}  // namespace

int64_t queued_bytes(const api::Command& command) {
  auto bytes = static_cast<int64_t>(sizeof(api::Command)) + kBookkeeping;
  if (const auto* pass = std::get_if<api::ForwardBackward>(&command.op)) {
    for (const api::Datum& d : pass->data) {
      size_t values = d.tokens.size() + d.targets.size();
      for (const std::vector<float>& column : d.inputs.values) values += column.size();
      bytes += static_cast<int64_t>(sizeof(api::Datum) + 4 * values);
    }
  }
  if (const auto* sample = std::get_if<api::Sample>(&command.op)) {
    // Twice: a record of it has the prompt as well. Targets have an id, and a place or two here and
    // with who answers.
    const size_t values = 2 * sample->prompt.size() + 5 * sample->prompt_targets.ids.size() +
                          2 * sample->prompt_targets.first.size() + sample->stop.size() +
                          2 * sample->logit_bias.size();
    bytes += static_cast<int64_t>(4 * values);
    for (const std::string& text : sample->stop_texts)
      bytes += static_cast<int64_t>(sizeof text + text.capacity());
  }
  return bytes;
}

int64_t datum_tokens(const api::Datum& datum) {
  return std::max<int64_t>(1, static_cast<int64_t>(datum.tokens.size()));
}

}  // namespace strata::scheduler
