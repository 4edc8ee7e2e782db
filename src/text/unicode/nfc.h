// SPDX-License-Identifier: Apache-2.0
// Normalization form C with the Unicode version of Hugging Face's normalizer (older than that of
// its regular expressions: marks and pairs that came later stay as they are).
#pragma once
#include "text/tokenizer/aligned_text.h"

namespace strata::text {

// `text` must be valid UTF-8.
AlignedText normalize_nfc(AlignedText text);

}  // namespace strata::text
