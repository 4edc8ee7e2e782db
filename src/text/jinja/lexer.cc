// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/lexer.h"

#include <algorithm>
#include <array>

#include "base/ascii.h"
#include "base/error.h"
#include "text/jinja/py_string.h"
#include "text/unicode/unicode.h"

namespace strata::text {

void template_syntax(int line, const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument,
              "chat template: line " + std::to_string(line) + ": " + message);
}

void template_unsupported(int line, const std::string& construct) {
  throw Error(ErrorCode::kUnsupported, "chat template: line " + std::to_string(line) + ": " +
                                           construct + " is not supported");
}

namespace {

// A step looks names up, which takes as long as they are.
constexpr size_t kMaxNameBytes = 255;

// \r\n and \r become \n; one newline at the very end goes.
std::string normalize_newlines(std::string_view source) {
  std::string out;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
    } else if (i + 1 >= source.size() || source[i + 1] != '\n') {
      out += '\n';
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : text_(source) {}

  std::vector<Token> lex() {
    while (pos_ < text_.size()) lex_text_and_tag();
    add(Token::Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  void add(Token::Kind kind, std::string text) {
    tokens_.push_back({kind, std::move(text), line_});
  }
  [[nodiscard]] bool at(std::string_view token) const {
    return text_.substr(pos_).starts_with(token);
  }
  // Moves on, counting lines.
  void advance(size_t end) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(pos_),
                                         text_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
    at_line_start_ = end > pos_ ? text_[end - 1] == '\n' : at_line_start_;
    pos_ = end;
  }
  [[nodiscard]] size_t behind_spaces(size_t at) const {
    return text_.size() - py_strip(text_.substr(at), {}, true, false).size();
  }
  void skip_spaces() { advance(behind_spaces(pos_)); }

  [[nodiscard]] size_t find_tag() const;
  void lex_text_and_tag();
  void lex_comment();
  [[nodiscard]] size_t find_end_of_word_tag(size_t at, std::string_view word,
                                            std::string_view signs) const;
  bool try_lex_raw_block(size_t begin);
  void lex_tag(std::string_view end, Token::Kind end_kind);
  bool try_lex_end_of_tag(std::string_view end, Token::Kind end_kind);
  void skip_tag_end(std::string_view close, bool trim_newline);
  void lex_token();
  bool try_lex_name();
  void lex_operator();
  void update_open_brackets(std::string_view op);
  void lex_string(char quote);
  [[nodiscard]] bool digit_at(size_t at) const {
    return at < text_.size() && text_[at] >= '0' && text_[at] <= '9';
  }
  [[nodiscard]] size_t behind_digits(size_t at) const {
    while (digit_at(at) || (at < text_.size() && text_[at] == '_')) ++at;
    return at;
  }
  [[nodiscard]] size_t behind_fraction(size_t at) const;
  [[nodiscard]] size_t behind_exponent(size_t at) const;
  void lex_number();
  std::string_view trim_before_tag(std::string_view text, char sign, bool is_print) const;
  void append_escape(std::string_view text, size_t& i, std::string& out) const;
  uint32_t decode_escape(std::string_view text, size_t& i) const;

  std::string_view text_;
  size_t pos_ = 0;
  int line_ = 1;
  bool at_line_start_ = true;
  std::vector<char> open_;  // brackets inside a tag
  std::vector<Token> tokens_;
};

// The text in front of a tag, without what '-' or lstrip_blocks takes.
std::string_view Lexer::trim_before_tag(std::string_view text, char sign, bool is_print) const {
  if (sign == '-') return py_strip(text, {}, false, true);
  if (sign == '+' || is_print) return text;
  const size_t newline = text.rfind('\n');
  const size_t start = newline == std::string_view::npos ? 0 : newline + 1;
  if (start == 0 && !at_line_start_) return text;
  const bool blank = py_strip(text.substr(start), {}, true, false).empty();
  return blank ? text.substr(0, start) : text;
}

// Where the next tag begins, or the end of the text.
size_t Lexer::find_tag() const {
  size_t at = text_.find('{', pos_);
  while (at != std::string_view::npos) {
    const char kind = at + 1 < text_.size() ? text_[at + 1] : ' ';
    if (kind == '{' || kind == '%' || kind == '#') return at;
    at = text_.find('{', at + 1);
  }
  return text_.size();
}

void Lexer::lex_text_and_tag() {
  const size_t tag = find_tag();
  const std::string_view before = text_.substr(pos_, tag - pos_);
  if (tag == text_.size()) {
    if (!before.empty()) add(Token::Kind::kText, std::string(before));
    pos_ = tag;
    return;
  }
  const char kind = text_[tag + 1];
  const char sign = tag + 2 < text_.size() ? text_[tag + 2] : ' ';
  const bool signed_tag = sign == '-' || sign == '+';
  const std::string_view kept = trim_before_tag(before, sign, kind == '{');
  if (!kept.empty()) add(Token::Kind::kText, std::string(kept));
  advance(tag);
  advance(tag + 2 + (signed_tag ? 1 : 0));
  if (kind == '#') return lex_comment();
  if (kind == '%') {
    if (try_lex_raw_block(pos_)) return;
    add(Token::Kind::kBlockBegin, "");
    return lex_tag("%}", Token::Kind::kBlockEnd);
  }
  add(Token::Kind::kPrintBegin, "");
  lex_tag("}}", Token::Kind::kPrintEnd);
}

// Behind a tag: '-' takes all whitespace, otherwise trim_blocks one newline.
void Lexer::skip_tag_end(std::string_view close, bool trim_newline) {
  const char sign = text_[pos_];
  const bool signed_tag = sign == '-' || sign == '+';
  advance(pos_ + close.size() + (signed_tag ? 1 : 0));
  if (sign == '-') return skip_spaces();
  if (sign != '+' && trim_newline && at("\n")) advance(pos_ + 1);
}

void Lexer::lex_comment() {
  const size_t end = text_.find("#}", pos_);
  if (end == std::string_view::npos) template_syntax(line_, "Missing end of comment tag");
  const bool signed_tag = end > pos_ && (text_[end - 1] == '-' || text_[end - 1] == '+');
  advance(signed_tag ? end - 1 : end);
  skip_tag_end("#}", true);
}

// Where the sign and "%}" stand behind a tag's one word, which begins at `at` or behind blanks;
// npos when something else is there. `signs` are those that the tag may end with.
size_t Lexer::find_end_of_word_tag(size_t at, std::string_view word, std::string_view signs) const {
  at = behind_spaces(at);
  if (!text_.substr(at).starts_with(word)) return std::string_view::npos;
  at = behind_spaces(at + word.size());
  const std::string_view rest = text_.substr(at);
  const bool is_signed = !rest.empty() && signs.find(rest[0]) != std::string_view::npos;
  return rest.substr(is_signed ? 1 : 0).starts_with("%}") ? at : std::string_view::npos;
}

// {% raw %} ... {% endraw %}, when one begins with the words at `begin`.
bool Lexer::try_lex_raw_block(size_t begin) {
  const size_t end = find_end_of_word_tag(begin, "raw", "-");
  if (end == std::string_view::npos) return false;
  advance(end);
  skip_tag_end("%}", false);
  for (size_t at = text_.find("{%", pos_); at != std::string_view::npos;
       at = text_.find("{%", at + 2)) {
    const char sign = at + 2 < text_.size() ? text_[at + 2] : ' ';
    const size_t word = at + 2 + (sign == '-' || sign == '+' ? 1 : 0);
    const size_t close = find_end_of_word_tag(word, "endraw", "-+");
    if (close == std::string_view::npos) continue;
    const std::string_view kept = trim_before_tag(text_.substr(pos_, at - pos_), sign, false);
    if (!kept.empty()) add(Token::Kind::kText, std::string(kept));
    advance(close);
    skip_tag_end("%}", true);
    return true;
  }
  template_syntax(line_, "Missing end of raw directive");
}

bool Lexer::try_lex_end_of_tag(std::string_view end, Token::Kind end_kind) {
  const bool block = end_kind == Token::Kind::kBlockEnd;
  const bool minus = at("-") && text_.substr(pos_ + 1).starts_with(end);
  const bool plus = block && at("+") && text_.substr(pos_ + 1).starts_with(end);
  if (!open_.empty() || (!at(end) && !minus && !plus)) return false;
  add(end_kind, "");
  skip_tag_end(end, block);
  return true;
}

void Lexer::lex_tag(std::string_view end, Token::Kind end_kind) {
  open_.clear();
  const int first_line = line_;
  for (;;) {
    if (pos_ >= text_.size())
      template_syntax(first_line,
                      "a tag that is not closed; '" + std::string(end) + "' is missing");
    if (try_lex_end_of_tag(end, end_kind)) return;
    const size_t before = pos_;
    skip_spaces();
    if (pos_ == before) lex_token();
  }
}

void Lexer::lex_token() {
  const char c = text_[pos_];
  if (c == '"' || c == '\'') return lex_string(c);
  if (c >= '0' && c <= '9') return lex_number();
  if (!try_lex_name()) lex_operator();
}

bool Lexer::try_lex_name() {
  size_t end = pos_;
  static const CodePointSet words(word_ranges());
  while (end < text_.size()) {
    size_t next = end;
    if (!words.contains(next_code_point(text_, next))) break;
    end = next;
  }
  if (end > pos_ + kMaxNameBytes)
    template_unsupported(line_, "a name of more than " + std::to_string(kMaxNameBytes) + " bytes");
  if (end == pos_) return false;
  add(Token::Kind::kName, std::string(text_.substr(pos_, end - pos_)));
  advance(end);
  return true;
}

void Lexer::lex_operator() {
  constexpr std::array<std::string_view, 26> kOperators = {
      "//", "**", "==", "!=", ">=", "<=", "+", "-", "*", "/", "%", "~", "[",
      "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
  const auto* found = std::find_if(kOperators.begin(), kOperators.end(),
                                   [&](std::string_view op) { return at(op); });
  if (found == kOperators.end()) {
    size_t end = pos_;
    next_code_point(text_, end);
    template_syntax(line_,
                    "unexpected character '" + std::string(text_.substr(pos_, end - pos_)) + "'");
  }
  update_open_brackets(*found);
  add(Token::Kind::kOperator, std::string(*found));
  advance(pos_ + found->size());
}

void Lexer::update_open_brackets(std::string_view op) {
  if (op == "(" || op == "[" || op == "{") open_.push_back(op[0]);
  if (op == ")" || op == "]" || op == "}") {
    const char wanted = op == ")" ? '(' : op == "]" ? '[' : '{';
    if (open_.empty() || open_.back() != wanted)
      template_syntax(line_, "unexpected '" + std::string(op) + "'");
    open_.pop_back();
  }
}

// `at` itself where no fraction, or no exponent, begins.
size_t Lexer::behind_fraction(size_t at) const {
  const bool begins = at < text_.size() && text_[at] == '.' && digit_at(at + 1);
  return begins ? behind_digits(at + 1) : at;
}

size_t Lexer::behind_exponent(size_t at) const {
  if (at >= text_.size() || (text_[at] != 'e' && text_[at] != 'E')) return at;
  size_t digits = at + 1;
  if (digits < text_.size() && (text_[digits] == '+' || text_[digits] == '-')) ++digits;
  return digit_at(digits) ? behind_digits(digits) : at;
}

void Lexer::lex_number() {
  const size_t whole_end = behind_digits(pos_);
  // 1.2 is a number, and the 1.2 of x.1.2 is two subscripts.
  const bool subscript = pos_ > 0 && text_[pos_ - 1] == '.';
  const size_t end = subscript ? whole_end : behind_exponent(behind_fraction(whole_end));
  const bool is_float = end > whole_end;
  if (end < text_.size() && (text_[end] == 'x' || text_[end] == 'o' || text_[end] == 'b'))
    template_unsupported(line_, "a number that is not decimal");
  std::string text(text_.substr(pos_, end - pos_));
  std::erase(text, '_');
  add(is_float ? Token::Kind::kFloat : Token::Kind::kInteger, std::move(text));
  advance(end);
}

// The code point of \xHH, \uHHHH, \UHHHHHHHH or an octal escape; text[i] is behind the backslash.
uint32_t Lexer::decode_escape(std::string_view text, size_t& i) const {
  const char letter = text[i];
  const bool octal = letter >= '0' && letter <= '7';
  const int base = octal ? 8 : 16;
  const size_t wanted = letter == 'x' ? 2 : letter == 'u' ? 4 : letter == 'U' ? 8 : 3;
  uint64_t value = 0;
  size_t count = 0;
  if (!octal) ++i;
  for (; count < wanted && i < text.size(); ++count, ++i) {
    const int digit = digit_value(text[i]);
    if (digit >= base) break;
    value = value * static_cast<uint64_t>(base) + static_cast<uint64_t>(digit);
  }
  if ((!octal && count < wanted) || value > kMaxCodePoint || (value >= 0xD800 && value < 0xE000))
    template_unsupported(line_, "this escape in a string");
  return static_cast<uint32_t>(value);
}

// text[i] is behind the backslash, and in the end behind the escape.
void Lexer::append_escape(std::string_view text, size_t& i, std::string& out) const {
  constexpr std::string_view kLetters = "ntr\\'\"abfv";
  constexpr std::string_view kValues = "\n\t\r\\'\"\a\b\f\v";
  const char letter = text[i];
  const size_t simple = kLetters.find(letter);
  if (simple != std::string_view::npos) {
    out += kValues[simple];
    ++i;
  } else if (letter == 'x' || letter == 'u' || letter == 'U' || (letter >= '0' && letter <= '7')) {
    append_utf8(out, decode_escape(text, i));
  } else if (letter == 'N') {
    template_unsupported(line_, "\\N in a string");
  } else if (letter == '\n') {
    ++i;
  } else {
    out += '\\';
  }
}

void Lexer::lex_string(char quote) {
  size_t end = pos_ + 1;
  while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2 : 1;
  if (end >= text_.size()) template_syntax(line_, "a string without its closing quote");
  const std::string_view body = text_.substr(pos_ + 1, end - pos_ - 1);
  std::string out;
  for (size_t i = 0; i < body.size();) {
    if (body[i] != '\\') {
      out += body[i++];
      continue;
    }
    append_escape(body, ++i, out);
  }
  add(Token::Kind::kString, std::move(out));
  advance(end + 1);
}

}  // namespace

std::vector<Token> lex_template(std::string_view source) {
  const std::string text = normalize_newlines(source);
  return Lexer(text).lex();
}

}  // namespace strata::text
