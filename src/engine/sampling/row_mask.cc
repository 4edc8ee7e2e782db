// SPDX-License-Identifier: Apache-2.0
// RowBook's masks: what a row's matcher lets its next choice choose.
#include "engine/sampling/row_book.h"

namespace strata::engine {

void RowBook::mask_choice(const SampleRow& row, SampleChoice& choice) const {
  if (row.matcher == nullptr) return;
  structured::Matcher& matcher = *row.matcher;
  choice.mask.assign(structured::num_mask_words(matcher.vocab_size()), ~0u);
  int64_t num_accepted = 0;
  for (const int32_t draft : choice.drafts) {
    if (matcher.is_ended() || !matcher.accept(draft)) break;
    ++num_accepted;
  }
  if (num_accepted == std::ssize(choice.drafts) && !matcher.is_ended())
    matcher.fill_mask(choice.mask);
  matcher.rollback(num_accepted);
  choice.allowed = choice.mask;
}

}  // namespace strata::engine
