// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <utility>

namespace strata::text {
namespace {

using Behavior = PreTokenizerStep::Behavior;

// Whether a part becomes one piece with the part before it; of either, whether it is a delimiter.
bool joins(Behavior behavior, bool previous, bool delimiter) {
  switch (behavior) {
    case Behavior::kIsolated:
    case Behavior::kRemoved:
      return false;
    case Behavior::kContiguous:
      return delimiter == previous;
    case Behavior::kMergedWithPrevious:
      return delimiter && !previous;
    case Behavior::kMergedWithNext:
      return !delimiter && previous;
  }
  return false;
}

// Parts of a text, joined to pieces as a split's behavior says, each given to `take` when it is
// complete; where `take` is false, this is too.
template <typename Take>
class PieceJoiner {
 public:
  PieceJoiner(Behavior behavior, size_t begin, Take take)
      : behavior_(behavior), waiting_{begin, begin}, take_(std::move(take)) {}

  bool add_part(size_t begin, size_t end, bool delimiter) {
    if (end == begin || (behavior_ == Behavior::kRemoved && delimiter)) return true;
    const bool joined = waiting_.end > waiting_.begin && joins(behavior_, previous_, delimiter);
    previous_ = delimiter;
    if (joined) {
      waiting_.end = end;
      return true;
    }
    return take_(std::exchange(waiting_, {begin, end}));
  }
  bool finish() { return take_(waiting_); }

 private:
  const Behavior behavior_;
  Piece waiting_;  // may join with the next part
  bool previous_ = false;
  Take take_;
};

// A piece goes through all steps before the next is looked for.
class PreTokenizer {
 public:
  PreTokenizer(std::span<const PreTokenizerStep> steps, bool at_start, const AlignedText& text,
               Piece part, TakePiece take)
      : steps_(steps),
        at_start_(at_start),
        take_(take),
        steps_left_(Regex::steps_for(static_cast<int64_t>(part.end - part.begin))),
        rebuilt_(steps.size(), {false, text.tracked ? text.map[part.begin] : 0}) {}

  // The steps from `step` on. `first`: nothing comes before it in its text.
  bool run_steps(size_t step, const AlignedText& text, Piece piece, bool first);

 private:
  // A step makes texts of its pieces, which follow each other; this is one of them.
  struct Rebuilt {
    bool begun;
    size_t boundary;  // where the last ended in the original; that of the first begins there
  };

  bool run_split(size_t step, const Regex& pattern, Behavior behavior, bool invert,
                 const AlignedText& text, Piece piece, bool first);
  AlignedText make_empty_text(size_t step, const AlignedText& text, Piece piece) const;
  // Ends what make_empty_text() began, and goes on with it: in parts, where there is a pattern.
  bool run_rest_on_text(size_t step, const AlignedText& out, const Regex* pattern,
                        Behavior behavior);
  bool add_prefix_space(size_t step, const AlignedText& text, Piece piece);
  bool apply_metaspace(size_t step, const AlignedText& text, Piece piece, bool first);

  std::span<const PreTokenizerStep> steps_;
  bool at_start_;
  TakePiece take_;
  int64_t steps_left_;            // of all patterns on all pieces
  std::vector<Rebuilt> rebuilt_;  // by step
};

bool PreTokenizer::run_steps(size_t step, const AlignedText& text, Piece piece, bool first) {
  if (step == steps_.size()) return take_(text, piece);
  const PreTokenizerStep& one = steps_[step];
  switch (one.kind) {
    case PreTokenizerStep::Kind::kSplit:
      return run_split(step, *one.pattern, one.behavior, one.invert, text, piece, first);
    case PreTokenizerStep::Kind::kMetaspace:
      return apply_metaspace(step, text, piece, first);
    case PreTokenizerStep::Kind::kByteLevel:
      return one.add_prefix_space ? add_prefix_space(step, text, piece)
             : one.pattern
                 ? run_split(step, *one.pattern, Behavior::kIsolated, false, text, piece, first)
                 : run_steps(step + 1, text, piece, first);
  }
  return true;
}

bool PreTokenizer::run_split(size_t step, const Regex& pattern, Behavior behavior, bool invert,
                             const AlignedText& text, Piece piece, bool first) {
  PieceJoiner joiner(behavior, piece.begin, [&](Piece part) {
    return part.end == part.begin ||
           run_steps(step + 1, text, part, first && part.begin == piece.begin);
  });
  size_t done = piece.begin;
  const std::string_view part(text.text.data() + piece.begin, piece.end - piece.begin);
  const auto found = [&](size_t begin, size_t end) {
    const size_t from = std::exchange(done, piece.begin + end);
    return joiner.add_part(from, piece.begin + begin, invert) &&
           joiner.add_part(piece.begin + begin, done, !invert);
  };
  return pattern.find_while(part, found, steps_left_) && joiner.add_part(done, piece.end, invert) &&
         joiner.finish();
}

AlignedText PreTokenizer::make_empty_text(size_t step, const AlignedText& text, Piece piece) const {
  AlignedText out;
  out.tracked = text.tracked;
  out.text.reserve(piece.end - piece.begin + 8);
  if (out.tracked) out.map.push_back(rebuilt_[step].boundary);
  return out;
}

bool PreTokenizer::run_rest_on_text(size_t step, const AlignedText& out, const Regex* pattern,
                                    Behavior behavior) {
  Rebuilt& rebuilt = rebuilt_[step];
  if (out.tracked) rebuilt.boundary = out.map.back();
  const bool leads = !std::exchange(rebuilt.begun, true);
  const Piece whole = {0, out.text.size()};
  return pattern == nullptr ? run_steps(step + 1, out, whole, leads)
                            : run_split(step, *pattern, behavior, false, out, whole, leads);
}

bool PreTokenizer::add_prefix_space(size_t step, const AlignedText& text, Piece piece) {
  const PreTokenizerStep& one = steps_[step];
  AlignedText out = make_empty_text(step, text, piece);
  if (text.text[piece.begin] != ' ') out.append_edit(text, piece.begin, piece.begin, " ");
  out.append(text, piece.begin, piece.end);
  return run_rest_on_text(step, out, one.pattern.get(), Behavior::kIsolated);
}

bool PreTokenizer::apply_metaspace(size_t step, const AlignedText& text, Piece piece, bool first) {
  const PreTokenizerStep& one = steps_[step];
  const std::string& mark = one.replacement;
  const std::string_view all(text.text);
  AlignedText out = make_empty_text(step, text, piece);
  const bool marked = all[piece.begin] == ' ' || all.substr(piece.begin).starts_with(mark);
  const bool wanted = one.scheme == PrependScheme::kAlways ||
                      (one.scheme == PrependScheme::kFirst && first && at_start_);
  if (!marked && wanted) out.append_edit(text, piece.begin, piece.begin, mark);
  for (size_t pos = piece.begin; pos < piece.end;) {
    const std::string_view rest = all.substr(pos, piece.end - pos);
    const size_t space = pos + std::min(rest.find(' '), rest.size());
    out.append(text, pos, space);
    if (space < piece.end) out.append_edit(text, space, space + 1, mark);
    pos = space + 1;
  }
  return run_rest_on_text(step, out, one.split ? one.pattern.get() : nullptr,
                          Behavior::kMergedWithNext);
}

}  // namespace

bool pre_tokenize(std::span<const PreTokenizerStep> steps, const AlignedText& text, Piece part,
                  bool at_start, TakePiece take) {
  if (part.end == part.begin) return true;
  return PreTokenizer(steps, at_start, text, part, take).run_steps(0, text, part, /*first=*/true);
}

}  // namespace strata::text
