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
    // Twice: a record of it has the prompt as well.
    const size_t values = 2 * sample->prompt.size() + sample->prompt_targets.ids.size();
    bytes += static_cast<int64_t>(4 * values);
  }
  return bytes;
}

int64_t datum_tokens(const api::Datum& datum) {
  return std::max<int64_t>(1, static_cast<int64_t>(datum.tokens.size()));
}

int64_t prompt_pages(const api::Sample& sample, int64_t page_size) {
  return (static_cast<int64_t>(sample.prompt.size()) + page_size - 1) / page_size;
}

int64_t sample_pages(const api::Sample& sample, int64_t row, int64_t page_size) {
  const auto prompt = static_cast<int64_t>(sample.prompt.size());
  const int64_t all = (prompt + sample.max_tokens + page_size - 1) / page_size;
  // A further row begins at the prompt's last token, on a page of its own.
  return row == 0 ? all : all - (prompt - 1) / page_size;
}

}  // namespace strata::scheduler
