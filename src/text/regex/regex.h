// SPDX-License-Identifier: Apache-2.0
// Regex: the part of Oniguruma's syntax that pre-tokenizers use, over valid UTF-8, with the Unicode
// tables of unicode_tables.h. Supported: literals, classes with nesting and &&, \p{..} for general
// categories, a few scripts and Alphabetic, \s \S \d \D \w \W, groups, (?i:..), alternation,
// greedy, lazy and possessive repeats, atomic groups, lookahead, one-character lookbehind, ^ $ \A
// \z \Z \b \B. Anything else is an Error{kUnsupported} that names the construct and its byte in the
// pattern. Work is bounded by the steps that a caller gives, and memory by kMaxFrames places to go
// back to; beyond them is an Error. Immutable after construction; any thread.
//   Regex words("\\p{L}+", "pre_tokenizer");
//   words.find_while(text, [&](size_t begin, size_t end) { ... }, steps_left);
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/function_ref.h"
#include "text/unicode/unicode.h"

namespace strata::text {

class Regex {
 public:
  static constexpr int64_t kStepsPerByte = 1000;
  static constexpr size_t kMaxFrames = 1 << 22;  // of 24 bytes
  static constexpr size_t kMaxPatternBytes = 1 << 16;
  static constexpr size_t kMaxProgram = 1 << 16;

  // kPython: Python's re (3.11). What is taken means what it does there, of a line of printable
  // ASCII; what Python refuses, or we do not read as it does, is an Error.
  enum class Syntax { kOniguruma, kPython };
  Regex(std::string_view pattern, const std::string& where, Syntax syntax = Syntax::kOniguruma);
  // Matches `text` itself, character by character.
  static Regex literal(std::string_view text, const std::string& where);

  // Bytes of memory, besides the object.
  [[nodiscard]] int64_t num_bytes() const;

  // Calls found(begin, end) for each match, leftmost first, until it is false, as this then is; for
  // empty ones too, but behind another and at the text's end. Takes its steps off `steps_left`.
  bool find_while(std::string_view text, FunctionRef<bool(size_t, size_t)> found,
                  int64_t& steps_left) const;
  static int64_t steps_for(int64_t bytes) { return kStepsPerByte * (bytes + kStepsPerByte); }

  // Whether a match begins at the start of `text`. Takes its steps off `steps_left`; below zero
  // they, or kMaxFrames, were too few, and the answer is none.
  [[nodiscard]] bool matches_start(std::string_view text, int64_t& steps_left) const;

  struct Set {
    explicit Set(const Ranges& ranges);
    uint64_t ascii[2] = {0, 0};
    CodePointSet all;  // none where there is nothing beyond ASCII: most sets are a character
    [[nodiscard]] bool contains(uint32_t c) const {
      if (c < 128) return (ascii[c >> 6] >> (c & 63) & 1) != 0;
      return !all.is_none() && all.contains(c);
    }
  };
  enum class Op : uint8_t {
    kSet,         // one code point of sets[arg]
    kGreedy,      // min..max code points of sets[arg], giving back one at a time
    kLazy,        // min..max code points of sets[arg], taking one more at a time
    kPossessive,  // min..max code points of sets[arg], giving nothing back
    kSplit,       // try arg, then other
    kJump,        // to arg
    kLook,        // the program at pc + 1 up to its kMatch decides; `negate`; goes on at arg
    kAtomic,      // the same, and its match is taken; goes on at arg
    kBehind,      // the code point before is in sets[arg]; `negate`
    kAssert,      // `arg` is an Assertion
    kMatch,
  };
  enum class Assertion : uint32_t { kLineBegin, kLineEnd, kBegin, kEnd, kEndOrNewline, kWord };
  struct Instruction {
    Op op;
    bool negate = false;
    uint32_t arg = 0;
    uint32_t other = 0;
    uint32_t min = 1;
    uint32_t max = 1;
  };
  struct Program {
    std::vector<Instruction> code;
    std::vector<Set> sets;
  };

 private:
  [[noreturn]] void throw_too_many_steps(size_t bytes) const;
  Regex(Program program, const std::string& where) : where_(where), program_(std::move(program)) {}
  std::string where_;
  Program program_;
};

}  // namespace strata::text
