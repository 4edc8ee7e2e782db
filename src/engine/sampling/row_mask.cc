// SPDX-License-Identifier: Apache-2.0
// RowBook's masks: what rows' matchers let their next choices choose.
#include <exception>

#include "engine/sampling/row_book.h"

namespace strata::engine {
namespace {

// Behind the row's tokens and choice.drafts. A choice that does not count, since these drafts do
// not fit, chooses from all.
void fill_mask(structured::Matcher& matcher, SampleChoice& choice) {
  int64_t num_accepted = 0;
  for (const int32_t draft : choice.drafts) {
    if (matcher.is_ended() || !matcher.accept(draft)) break;
    ++num_accepted;
  }
  if (num_accepted == std::ssize(choice.drafts) && !matcher.is_ended())
    matcher.fill_mask(choice.mask);
  matcher.rollback(num_accepted);
}

}  // namespace

void RowBook::fill_masks(Backend& backend, std::span<SampleChoice> choices) const {
  // A row's matcher is one thread's, and the choices of a row stand next to each other.
  struct MaskedRow {
    structured::Matcher& matcher;
    std::span<SampleChoice> choices;
  };
  std::vector<MaskedRow> masked;
  for (size_t begin = 0, end = 0; begin < choices.size(); begin = end) {
    while (end < choices.size() && choices[end].id == choices[begin].id) ++end;
    const SampleRow& row = rows_.at(choices[begin].id);
    if (row.matcher != nullptr)
      masked.push_back({*row.matcher, choices.subspan(begin, end - begin)});
  }
  for (const MaskedRow& row : masked) {
    for (SampleChoice& choice : row.choices) {
      choice.mask.assign(structured::num_mask_words(row.matcher.vocab_size()), ~0u);
      choice.allowed = choice.mask;
    }
  }
  backend.unless_counting([&] {
    backend.run_on_host(std::ssize(masked), [&](int64_t item) {
      const MaskedRow& row = masked[static_cast<size_t>(item)];
      for (SampleChoice& choice : row.choices) {
        try {
          fill_mask(row.matcher, choice);
        } catch (const std::exception& error) {  // of this row alone
          choice.error = error.what();
        }
      }
    });
  });
}

}  // namespace strata::engine
