// SPDX-License-Identifier: Apache-2.0
// Steps that change text before it is cut, in the file's order. Text must be valid UTF-8.
#pragma once
#include <cstddef>
#include <limits>
#include <span>
#include <string_view>

#include "text/tokenizer/aligned_text.h"
#include "text/tokenizer/spec.h"

namespace strata::text {

// Error{kInvalidArgument} where a step makes far more of a text than any real one does: 32 bytes of
// each, where 11 are the most that Unicode's forms make of one.
AlignedText normalize(std::span<const NormalizerStep> steps, AlignedText text);

// Each match of `pattern` becomes `content`; Error{kInvalidArgument} beyond `most` bytes.
AlignedText replace_all(const Regex& pattern, std::string_view content, const AlignedText& text,
                        size_t most = std::numeric_limits<size_t>::max());

}  // namespace strata::text
