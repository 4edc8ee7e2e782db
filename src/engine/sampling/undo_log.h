// SPDX-License-Identifier: Apache-2.0
// The undo log of a sequence's state (model/cache_layout.h): before drafts are read, what their
// positions will write over in its rings is copied there; where they are rejected it comes back, so
// that the state is as if they had not been read. Entries in pages need none: what a draft
// completed is completed again before anything reads it. Engine thread only.
#pragma once
#include <cstdint>

#include "backend/backend.h"
#include "model/cache_layout.h"

namespace strata::engine {

// Keeps the rows of positions [begin, end), as many as the layout's undo_tokens at most.
void save_undo_rows(Backend& backend, const model::CacheLayout& cache, void* state, int64_t begin,
                    int64_t end);
// Puts back the rows of the last of the positions that were kept.
void restore_undo_rows(Backend& backend, const model::CacheLayout& cache, void* state,
                       int64_t begin, int64_t end);

}  // namespace strata::engine
