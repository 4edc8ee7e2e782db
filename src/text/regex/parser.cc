// SPDX-License-Identifier: Apache-2.0
// Pattern text -> tree.
#include "base/ascii.h"
#include "base/error.h"
#include "text/regex/tree.h"

namespace strata::text {
namespace {

using Node = RegexNode;

constexpr uint32_t kMaxRepeat = 1000;
constexpr int kMaxDepth = 50;

bool can_be_empty(const Node& node) {
  switch (node.kind) {
    case Node::Kind::kSet:
      return false;
    case Node::Kind::kConcat:
    case Node::Kind::kAtomic:
      for (const Node& child : node.children)
        if (!can_be_empty(child)) return false;
      return true;
    case Node::Kind::kAlternate:
      for (const Node& child : node.children)
        if (can_be_empty(child)) return true;
      return false;
    case Node::Kind::kRepeat:
      return node.min == 0 || can_be_empty(node.children[0]);
    case Node::Kind::kAhead:
    case Node::Kind::kBehind:
    case Node::Kind::kAssert:
      return true;
  }
  return true;
}

class Parser {
 public:
  Parser(std::string_view pattern, const std::string& where, Regex::Syntax syntax)
      : text_(pattern), where_(where), is_python_(syntax == Regex::Syntax::kPython) {}

  Node parse() {
    Node node = parse_alternatives();
    if (pos_ < text_.size()) fail("an unmatched ')'");
    return node;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorCode::kUnsupported, where_ + ": pattern byte " + std::to_string(pos_) + ": " +
                                             what + " is not supported: " + std::string(text_));
  }
  [[nodiscard]] bool at(std::string_view token) const {
    return text_.substr(pos_).starts_with(token);
  }
  bool take(std::string_view token) {
    if (!at(token)) return false;
    pos_ += token.size();
    return true;
  }
  uint32_t next() {
    if (pos_ >= text_.size()) fail("the end of the pattern here");
    return next_code_point(text_, pos_);
  }

  Node parse_alternatives();
  Node parse_sequence();
  Node parse_quantified();
  Greed parse_greed(const Node& repeat, bool is_interval);
  bool try_wrap_in_quantifier(Node& atom);
  uint32_t parse_repeat_count(size_t& p) const;
  bool try_parse_bounds(uint32_t& min, uint32_t& max);
  Node parse_atom();
  bool parse_group_kind(Node& node);
  Node parse_group();
  [[nodiscard]] Ranges set_looked_behind(const Node& node) const;
  bool try_parse_assertion(Node& node);
  Node parse_escape_atom();
  void check_escape(size_t letter) const;
  Ranges parse_char_class();
  uint32_t parse_class_code_point(Ranges& ranges);
  Ranges parse_class_item();
  // \s, \d, \w, \p{..}, and what they are not by their capitals; false of other letters.
  bool parse_shorthand(uint32_t c, Ranges& out);
  Ranges parse_property();
  uint32_t parse_escape_code_point(uint32_t c);
  uint32_t parse_x_escape();
  uint32_t parse_hex(int min_digits, int max_digits);
  void add_other_cases(uint32_t c, Ranges& out) const;
  [[nodiscard]] Ranges literal_ranges(uint32_t first, uint32_t last) const;
  static Node set_node(Ranges ranges) {
    return {.kind = Node::Kind::kSet, .set = std::move(ranges)};
  }

  std::string_view text_;
  const std::string& where_;
  const bool is_python_;
  size_t pos_ = 0;
  int depth_ = 0;
  bool ignore_case_ = false;
};

Node Parser::parse_alternatives() {
  if (++depth_ > kMaxDepth) fail("nesting beyond " + std::to_string(kMaxDepth));
  const bool outer_case = ignore_case_;
  Node node{.kind = Node::Kind::kAlternate};
  do node.children.push_back(parse_sequence());
  while (take("|"));
  ignore_case_ = outer_case;
  --depth_;
  if (node.children.size() > 1) return node;
  Node only = std::move(node.children[0]);
  return only;
}

Node Parser::parse_sequence() {
  Node node;
  while (pos_ < text_.size() && !at("|") && !at(")")) node.children.push_back(parse_quantified());
  return node;
}

Node Parser::parse_quantified() {
  Node node = parse_atom();
  for (bool is_repeat = false; try_wrap_in_quantifier(node); is_repeat = true)
    if (is_python_ && is_repeat) fail("a repeat of a repeat");
  return node;
}

// The number at `p`, which then stands behind it; kUnbounded where there is none.
uint32_t Parser::parse_repeat_count(size_t& p) const {
  uint32_t value = 0;
  const size_t begin = p;
  for (; p < text_.size() && text_[p] >= '0' && text_[p] <= '9'; ++p) {
    value = value * 10 + static_cast<uint32_t>(text_[p] - '0');
    if (value > kMaxRepeat) fail("a repeat count above " + std::to_string(kMaxRepeat));
  }
  return p == begin ? kUnbounded : value;
}

// {n} {n,} {n,m} {,m}, Python's {,}; anything else in braces is a literal.
bool Parser::try_parse_bounds(uint32_t& min, uint32_t& max) {
  size_t p = pos_ + 1;
  min = parse_repeat_count(p);
  if (p < text_.size() && text_[p] == ',') {
    ++p;
    max = parse_repeat_count(p);
    if (min == kUnbounded && max == kUnbounded && !is_python_) return false;
    if (min == kUnbounded) min = 0;
  } else {
    max = min;
    if (min == kUnbounded) return false;
  }
  if (p >= text_.size() || text_[p] != '}') return false;
  if (max < min) fail("a repeat with its bounds in the wrong order");
  pos_ = p + 1;
  return true;
}

// Oniguruma: {n}? is an optional {n}, and a + after an interval repeats the interval.
Greed Parser::parse_greed(const Node& repeat, bool is_interval) {
  const bool is_plain = is_python_ || !is_interval;
  if ((is_plain || repeat.min != repeat.max) && take("?")) return Greed::kLazy;
  return is_plain && take("+") ? Greed::kPossessive : Greed::kGreedy;
}

bool Parser::try_wrap_in_quantifier(Node& atom) {
  Node repeat{.kind = Node::Kind::kRepeat};
  const bool interval = at("{");
  if (take("*")) {
    repeat.max = kUnbounded;
  } else if (take("+")) {
    repeat.min = 1, repeat.max = kUnbounded;
  } else if (take("?")) {
    repeat.max = 1;
  } else if (!interval || !try_parse_bounds(repeat.min, repeat.max)) {
    return false;
  }
  repeat.greed = parse_greed(repeat, interval);
  if (can_be_empty(atom)) fail("a repeat of something that may be empty");
  // Python takes each turn as it first matches; Oniguruma all of them together.
  if (is_python_ && repeat.greed == Greed::kPossessive)
    atom = {.kind = Node::Kind::kAtomic, .children = {std::move(atom)}};
  repeat.children.push_back(std::move(atom));
  atom = std::move(repeat);
  return true;
}

Node Parser::parse_atom() {
  if (at("(")) return parse_group();
  if (at("[")) return set_node(parse_char_class());
  if (at("\\")) return parse_escape_atom();
  if (take("^")) return {.kind = Node::Kind::kAssert, .assertion = Regex::Assertion::kLineBegin};
  if (take("$")) return {.kind = Node::Kind::kAssert, .assertion = Regex::Assertion::kLineEnd};
  if (take(".")) return set_node(complement({{'\n', '\n'}}));
  uint32_t min = 0, max = 0;
  if (at("*") || at("+") || at("?") || (is_python_ && at("{") && try_parse_bounds(min, max)))
    fail("a repeat of nothing");
  const uint32_t c = next();
  return set_node(literal_ranges(c, c));
}

Ranges Parser::set_looked_behind(const Node& node) const {
  const Node& inner = unwrapped(node.children[0]);
  if (inner.kind != Node::Kind::kSet) fail("lookbehind over more than one character");
  return inner.set;
}

// What a group begins with says its kind. False of (?i), which is for the rest of the enclosing
// group and has nothing inside.
bool Parser::parse_group_kind(Node& node) {
  if (at("?=") || at("?!")) {
    node.kind = Node::Kind::kAhead;
    node.negate = !take("?=") && take("?!");
  } else if (at("?<=") || at("?<!")) {
    node.kind = Node::Kind::kBehind;
    node.negate = !take("?<=") && take("?<!");
  } else if (take("?>")) {
    node.kind = Node::Kind::kAtomic;
  } else if (take("?i:")) {
    ignore_case_ = true;
  } else if (take("?-i:")) {
    ignore_case_ = false;
  } else if (!is_python_ && take("?i)")) {
    ignore_case_ = true;
    return false;
  } else if (!take("?:") && at("?")) {
    fail("this kind of group");
  }
  return true;
}

Node Parser::parse_group() {
  pos_ += 1;
  Node node;
  const bool outer_case = ignore_case_;
  if (!parse_group_kind(node)) return node;
  node.children.push_back(parse_alternatives());
  ignore_case_ = outer_case;
  if (!take(")")) fail("a group without ')'");
  if (node.kind == Node::Kind::kBehind) node.set = set_looked_behind(node);
  return node;
}

// \A, \b and their like.
bool Parser::try_parse_assertion(Node& node) {
  struct Named {
    const char* token;
    Regex::Assertion assertion;
    bool negate;
  };
  constexpr Named kNamed[] = {
      {"\\A", Regex::Assertion::kBegin, false},        {"\\z", Regex::Assertion::kEnd, false},
      {"\\Z", Regex::Assertion::kEndOrNewline, false}, {"\\b", Regex::Assertion::kWord, false},
      {"\\B", Regex::Assertion::kWord, true},
  };
  for (const Named& named : kNamed) {
    if (!take(named.token)) continue;
    node = {.kind = Node::Kind::kAssert, .negate = named.negate, .assertion = named.assertion};
    return true;
  }
  return false;
}

Node Parser::parse_escape_atom() {
  check_escape(pos_ + 1);
  Node node;
  if (try_parse_assertion(node)) return node;
  pos_ += 1;
  const uint32_t c = next();
  Ranges ranges;
  if (parse_shorthand(c, ranges)) return set_node(std::move(ranges));
  const uint32_t code_point = parse_escape_code_point(c);
  return set_node(literal_ranges(code_point, code_point));
}

// Python has none of these, or another.
void Parser::check_escape(size_t letter) const {
  if (!is_python_ || letter == text_.size()) return;
  const char c = text_[letter];
  if (std::string_view("pPzZexu").find(c) != std::string_view::npos)
    fail("the escape \\" + std::string(1, c));
}

bool Parser::parse_shorthand(uint32_t c, Ranges& out) {
  switch (c | 0x20) {
    case 's':
      out = space_ranges();
      break;
    case 'd':
      out = property_ranges("Nd");
      break;
    case 'w':
      out = word_ranges();
      break;
    case 'p':
      out = parse_property();
      break;
    default:
      return false;
  }
  if (c <= 'Z') out = complement(out);
  return true;
}

Ranges Parser::parse_property() {
  if (!take("{")) fail("\\p without {name}");
  const bool negate = take("^");
  const size_t end = text_.find('}', pos_);
  if (end == std::string_view::npos) fail("\\p{ without }");
  const std::string_view name = text_.substr(pos_, end - pos_);
  Ranges ranges = name == "White_Space" ? space_ranges() : property_ranges(name);
  if (ranges.empty()) fail("the property '" + std::string(name) + "'");
  pos_ = end + 1;
  return negate ? complement(ranges) : ranges;
}

uint32_t Parser::parse_hex(int min_digits, int max_digits) {
  uint32_t value = 0;
  int count = 0;
  for (; count < max_digits && pos_ < text_.size(); ++count, ++pos_) {
    const int digit = digit_value(text_[pos_]);
    if (digit >= 16) break;
    value = value * 16 + static_cast<uint32_t>(digit);
  }
  if (count < min_digits || value > kMaxCodePoint || (value >= 0xD800 && value < 0xE000))
    fail("this hexadecimal escape");
  return value;
}

// Behind \x: HH, or {H...}.
uint32_t Parser::parse_x_escape() {
  if (!take("{")) {
    const uint32_t value = parse_hex(1, 2);
    if (value > 0x7F) fail("a byte above 7F");
    return value;
  }
  const uint32_t value = parse_hex(1, 8);
  if (!take("}")) fail("\\x{ without }");
  return value;
}

uint32_t Parser::parse_escape_code_point(uint32_t c) {
  constexpr std::string_view kLetters = "nrtfvae", kValues = "\n\r\t\f\v\a\x1B";
  const size_t simple = c < 128 ? kLetters.find(static_cast<char>(c)) : std::string_view::npos;
  if (simple != std::string_view::npos) return static_cast<uint32_t>(kValues[simple]);
  switch (c) {
    case 'u':
      return parse_hex(4, 4);
    case 'x':
      return parse_x_escape();
    default:
      break;
  }
  const bool alphanumeric =
      (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  if (alphanumeric) fail("the escape \\" + std::string(1, static_cast<char>(c)));
  return c;
}

// For ASCII letters, of which U+017F is another s, and U+212A another k.
void Parser::add_other_cases(uint32_t c, Ranges& out) const {
  static const CodePointSet cased(
      unite(property_ranges("Lu"), unite(property_ranges("Ll"), property_ranges("Lt"))));
  if (c < 128) {
    const uint32_t other = c ^ 0x20;
    if (cased.contains(c)) out.push_back({other, other});
    if ((c | 0x20) == 's') out.push_back({0x17F, 0x17F});
    if ((c | 0x20) == 'k') out.push_back({0x212A, 0x212A});
  } else if (cased.contains(c)) {
    fail("(?i) over a letter beyond ASCII");
  }
}

// Under (?i), letters bring their other case.
Ranges Parser::literal_ranges(uint32_t first, uint32_t last) const {
  Ranges out = {{first, last}};
  if (!ignore_case_) return out;
  for (uint32_t c = first; c <= last; ++c) add_other_cases(c, out);
  return canonical_ranges(std::move(out));
}

// One end of a range; kUnbounded where it is a class that is written in short, in `ranges`.
uint32_t Parser::parse_class_code_point(Ranges& ranges) {
  const uint32_t c = next();
  if (c != '\\') return c;
  check_escape(pos_);
  const uint32_t escaped = next();
  if (escaped == 'b') return uint32_t{8};
  return parse_shorthand(escaped, ranges) ? kUnbounded : parse_escape_code_point(escaped);
}

// One item of a class: a range, a character, an escape, or a class inside.
Ranges Parser::parse_class_item() {
  if (at("[:")) fail("a POSIX bracket");
  if (at("[")) return parse_char_class();
  Ranges ranges;
  const uint32_t first = parse_class_code_point(ranges);
  if (first == kUnbounded && is_python_ && at("-") && !at("-]"))
    fail("a class as the start of a range");
  if (first == kUnbounded) return ranges;
  uint32_t last = first;
  if (at("-") && !at("-]") && !at("-&&")) {
    pos_ += 1;
    if (at("[")) fail("a class as the end of a range");
    last = parse_class_code_point(ranges);
    if (last == kUnbounded) fail("a class as the end of a range");
    if (last < first) fail("a range with its ends in the wrong order");
  }
  return literal_ranges(first, last);
}

Ranges Parser::parse_char_class() {
  if (++depth_ > kMaxDepth) fail("nesting beyond " + std::to_string(kMaxDepth));
  pos_ += 1;
  const bool negate = take("^");
  Ranges current;
  Ranges result;
  bool intersected = false;
  if (at("]")) fail("an empty class");
  while (!take("]")) {
    if (pos_ >= text_.size()) fail("a class without ']'");
    if (is_python_ && (at("[") || at("&&"))) fail("a class in a class");
    if (take("&&")) {
      result = intersected ? intersect(result, current) : current;
      intersected = true;
      current.clear();
      continue;
    }
    current = unite(current, parse_class_item());
  }
  --depth_;
  if (intersected) current = intersect(result, current);
  return negate ? complement(current) : current;
}

}  // namespace

void check_pattern_size(std::string_view pattern, const std::string& where) {
  if (pattern.size() > Regex::kMaxPatternBytes)
    throw Error(ErrorCode::kInvalidArgument,
                where + ": a pattern of " + std::to_string(pattern.size()) + " bytes; at most " +
                    std::to_string(Regex::kMaxPatternBytes) + " are read");
}

RegexNode parse_regex(std::string_view pattern, const std::string& where, Regex::Syntax syntax) {
  check_pattern_size(pattern, where);
  return Parser(pattern, where, syntax).parse();
}

}  // namespace strata::text
