// SPDX-License-Identifier: Apache-2.0
// The segments of a batch for ops that carry a state along a sequence: each sequence's rows, and
// where its state is. Engine thread only.
#pragma once
#include <span>

#include "model/blocks/block.h"
#include "model/pass/pass.h"
#include "ops/state_segment.h"

namespace strata::model {

// `offset` is the bytes from the start of the sublayer's part of a sequence's state. Borrows the
// pass's lists until the next call.
std::span<const ops::StateSegment> make_state_segments(Pass& pass, const BlockContext& context,
                                                       int64_t offset);

}  // namespace strata::model
