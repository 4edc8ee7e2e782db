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

void fill_shared_mask(const SampleRow& row, SharedMask& mask) {
  if (!row.mask_fault.empty()) {
    mask.error = row.mask_fault;
  } else if (!row.matcher->is_ended()) {
    row.matcher->fill_mask(mask.words);
  }
}

}  // namespace

void RowBook::fill_masks(Backend& backend, std::span<SampleChoice> choices) const {
  // A row's matcher is one thread's, and the choices of a row stand next to each other.
  struct MaskedRow {
    const SampleRow* row;
    std::span<SampleChoice> choices;
  };
  std::vector<MaskedRow> masked;
  for (size_t begin = 0, end = 0; begin < choices.size(); begin = end) {
    while (end < choices.size() && choices[end].id == choices[begin].id) ++end;
    const SampleRow& row = rows_.at(choices[begin].id);
    if (row.matcher != nullptr || row.shares_masks)
      masked.push_back({&row, choices.subspan(begin, end - begin)});
  }
  for (const MaskedRow& of : masked) {
    for (SampleChoice& choice : of.choices) {
      choice.mask.assign(structured::num_mask_words(engine_.config().vocab_size), ~0u);
      choice.allowed = choice.mask;
    }
  }
  std::erase_if(masked, [](const MaskedRow& of) { return of.row->shares_masks; });
  backend.unless_counting([&] {
    backend.run_on_host(std::ssize(masked), [&](int64_t item) {
      const MaskedRow& of = masked[static_cast<size_t>(item)];
      for (SampleChoice& choice : of.choices) {
        try {
          fill_mask(*of.row->matcher, choice);
        } catch (const std::exception& error) {  // of this row alone
          choice.error = error.what();
        }
      }
    });
  });
}

void RowBook::fill_shared_masks(Backend& backend, std::span<SharedMask> masks) const {
  backend.run_on_host(std::ssize(masks), [&](int64_t item) {
    SharedMask& mask = masks[static_cast<size_t>(item)];
    try {
      fill_shared_mask(rows_.at(mask.id), mask);
    } catch (const std::exception& error) {  // of this row alone
      mask.error = error.what();
    }
  });
}

bool RowBook::try_match(SampleRow& row, int32_t token) {
  if (row.matcher == nullptr || row.matcher->accept(token)) return true;
  const char* const fault =
      "sample: a token was allowed that does not fit the schema; a fault of the grammar";
  // The row goes on as it does in the other processes, until all hear of it.
  (row.shares_masks ? row.mask_fault : row.error) = fault;
  return row.shares_masks;
}

}  // namespace strata::engine
