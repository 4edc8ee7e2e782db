// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/pre_tokenizer.h"

#include <algorithm>

namespace strata::text {
namespace {

using Behavior = PreTokenizerStep::Behavior;

// A part of a piece, and whether it is a delimiter.
struct Part {
  Piece piece;
  bool delimiter;
};

void merge_parts(const std::vector<Part>& parts, Behavior behavior, std::vector<Piece>& out) {
  const size_t first = out.size();
  const auto put = [&](Piece piece) {
    if (piece.end > piece.begin) out.push_back(piece);
  };
  bool previous = false;
  switch (behavior) {
    case Behavior::kIsolated:
      for (const Part& part : parts) put(part.piece);
      break;
    case Behavior::kRemoved:
      for (const Part& part : parts)
        if (!part.delimiter) put(part.piece);
      break;
    case Behavior::kContiguous:
      for (const Part& part : parts) {
        if (out.size() > first && part.delimiter == previous) {
          out.back().end = part.piece.end;
        } else {
          put(part.piece);
        }
        previous = part.delimiter;
      }
      break;
    case Behavior::kMergedWithPrevious:
      for (const Part& part : parts) {
        if (part.delimiter && !previous && out.size() > first) {
          out.back().end = part.piece.end;
        } else {
          put(part.piece);
        }
        previous = part.delimiter;
      }
      break;
    case Behavior::kMergedWithNext:
      for (const Part& part : parts) {
        if (!part.delimiter && previous) {
          out.back().end = part.piece.end;
        } else {
          put(part.piece);
        }
        previous = part.delimiter;
      }
      break;
  }
}

void split(const Regex& pattern, Behavior behavior, bool invert, Pieces& all) {
  std::vector<Piece> out;
  out.reserve(all.pieces.size() + all.text.text.size() / 4);
  std::vector<Part> parts;
  const bool isolated = behavior == Behavior::kIsolated;
  for (const Piece piece : all.pieces) {
    parts.clear();
    size_t done = piece.begin;
    const auto put = [&](size_t begin, size_t end, bool delimiter) {
      if (end == begin) return;
      if (isolated) {
        out.push_back({begin, end});
      } else {
        parts.push_back({{begin, end}, delimiter != invert});
      }
    };
    const std::string_view text(all.text.text.data() + piece.begin, piece.end - piece.begin);
    pattern.find_all(text, [&](size_t begin, size_t end) {
      put(done, piece.begin + begin, false);
      put(piece.begin + begin, piece.begin + end, true);
      done = piece.begin + end;
    });
    put(done, piece.end, false);
    if (!isolated) merge_parts(parts, behavior, out);
  }
  all.pieces = std::move(out);
}

// The text rebuilt piece by piece; change(out, piece) appends what stands for a piece.
template <typename Change>
void rebuild(Pieces& all, Change change) {
  AlignedText out = all.text.start();
  for (Piece& piece : all.pieces) {
    const size_t begin = out.text.size();
    change(out, piece);
    piece = {begin, out.text.size()};
  }
  all.text = std::move(out);
}

void add_prefix_space(Pieces& all) {
  rebuild(all, [&](AlignedText& out, Piece piece) {
    if (all.text.text[piece.begin] != ' ') out.replace(all.text, piece.begin, piece.begin, " ");
    out.copy(all.text, piece.begin, piece.end);
  });
}

void metaspace(const PreTokenizerStep& step, Pieces& all) {
  const std::string& mark = step.replacement;
  rebuild(all, [&](AlignedText& out, Piece piece) {
    const std::string& text = all.text.text;
    const bool marked =
        text[piece.begin] == ' ' || std::string_view(text).substr(piece.begin).starts_with(mark);
    const bool first = piece.begin == 0 && all.at_start;
    if (!marked &&
        (step.scheme == PrependScheme::kAlways || (step.scheme == PrependScheme::kFirst && first)))
      out.replace(all.text, piece.begin, piece.begin, mark);
    for (size_t pos = piece.begin; pos < piece.end;) {
      const std::string_view rest(text.data() + pos, piece.end - pos);
      const size_t space = pos + std::min(rest.find(' '), rest.size());
      out.copy(all.text, pos, space);
      if (space < piece.end) out.replace(all.text, space, space + 1, mark);
      pos = space + 1;
    }
  });
  if (step.split) split(*step.pattern, Behavior::kMergedWithNext, false, all);
}

}  // namespace

void pre_tokenize(std::span<const PreTokenizerStep> steps, Pieces& all) {
  for (const PreTokenizerStep& step : steps) {
    switch (step.kind) {
      case PreTokenizerStep::Kind::kSplit:
        split(*step.pattern, step.behavior, step.invert, all);
        break;
      case PreTokenizerStep::Kind::kMetaspace:
        metaspace(step, all);
        break;
      case PreTokenizerStep::Kind::kByteLevel:
        if (step.add_prefix_space) add_prefix_space(all);
        if (step.pattern) split(*step.pattern, Behavior::kIsolated, false, all);
        break;
    }
  }
}

}  // namespace strata::text
