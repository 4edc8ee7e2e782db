// SPDX-License-Identifier: Apache-2.0
// A pattern as a tree, between parser.cc and compiler.cc.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "text/regex/regex.h"

namespace strata::text {

inline constexpr uint32_t kUnbounded = 0xFFFFFFFF;

enum class Greed { kGreedy, kLazy, kPossessive };

struct RegexNode {
  enum class Kind { kSet, kConcat, kAlternate, kRepeat, kAhead, kBehind, kAtomic, kAssert };
  Kind kind = Kind::kConcat;
  std::vector<RegexNode> children = {};  // none: an empty concatenation
  Ranges set = {};                       // kSet
  uint32_t min = 0, max = 0;             // kRepeat
  Greed greed = Greed::kGreedy;
  bool negate = false;
  Regex::Assertion assertion = Regex::Assertion::kBegin;
};

// What a concatenation of one stands for.
inline const RegexNode& unwrapped(const RegexNode& node) {
  const bool wraps = node.kind == RegexNode::Kind::kConcat && node.children.size() == 1;
  return wraps ? unwrapped(node.children[0]) : node;
}

// An Error where more than Regex::kMaxPatternBytes are to be made a program.
void check_pattern_size(std::string_view pattern, const std::string& where);
RegexNode parse_regex(std::string_view pattern, const std::string& where, Regex::Syntax syntax);
Regex::Program compile_regex_tree(const RegexNode& node, const std::string& where);

}  // namespace strata::text
