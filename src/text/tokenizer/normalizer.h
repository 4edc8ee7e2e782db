// SPDX-License-Identifier: Apache-2.0
// Steps that change text before it is cut, in the file's order. Text must be valid UTF-8.
#pragma once
#include <span>

#include "text/tokenizer/aligned_text.h"
#include "text/tokenizer/spec.h"

namespace strata::text {

AlignedText normalize(std::span<const NormalizerStep> steps, AlignedText text);

// Each match of `pattern` becomes `content`.
AlignedText replace_all(const Regex& pattern, std::string_view content, const AlignedText& text);

}  // namespace strata::text
