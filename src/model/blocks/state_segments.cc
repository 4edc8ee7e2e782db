// SPDX-License-Identifier: Apache-2.0
#include "model/blocks/state_segments.h"

namespace strata::model {
namespace {

struct StateLists {
  std::vector<ops::StateSegment> segments;
};

}  // namespace

std::span<const ops::StateSegment> make_state_segments(Pass& pass, const BlockContext& context,
                                                       int64_t offset) {
  offset += pass.cache.place(context.layer, context.sublayer).state_offset;
  std::vector<ops::StateSegment>& segments = pass.lists.blocks.ensure_lists<StateLists>().segments;
  segments.clear();
  for (const PassSequence& sequence : pass.sequences) {
    void* state = sequence.kept.state;
    segments.push_back({.begin = sequence.begin,
                        .end = sequence.end,
                        .first_position = sequence.first_position,
                        .state = state == nullptr ? nullptr : static_cast<char*>(state) + offset});
  }
  return segments;
}

}  // namespace strata::model
