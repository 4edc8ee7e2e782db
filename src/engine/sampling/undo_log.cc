// SPDX-License-Identifier: Apache-2.0
#include "engine/sampling/undo_log.h"

#include "base/check.h"
#include "ops/elementwise.h"

namespace strata::engine {
namespace {

// copy(place of the row in the state, place in the log, bytes)
template <typename Copy>
void for_each_undo_row(const model::CacheLayout& cache, void* state, int64_t begin, int64_t end,
                       const Copy& copy) {
  CHECK(begin >= 0 && end - begin <= cache.undo_tokens(), begin, end, cache.undo_tokens());
  auto* bytes = static_cast<char*>(state);
  for (size_t ring = 0; ring < cache.rings().size(); ++ring) {
    for (int64_t position = begin; position < end; ++position) {
      const auto row = cache.undo_row(ring, position);
      copy(bytes + row.state_offset, bytes + row.log_offset, row.bytes);
    }
  }
}

}  // namespace

void save_undo_rows(Backend& backend, const model::CacheLayout& cache, void* state, int64_t begin,
                    int64_t end) {
  for_each_undo_row(cache, state, begin, end, [&](const char* row, char* log, int64_t bytes) {
    ops::copy_bytes(backend, row, log, bytes);
  });
}

void restore_undo_rows(Backend& backend, const model::CacheLayout& cache, void* state,
                       int64_t begin, int64_t end) {
  for_each_undo_row(cache, state, begin, end, [&](char* row, const char* log, int64_t bytes) {
    ops::copy_bytes(backend, log, row, bytes);
  });
}

}  // namespace strata::engine
