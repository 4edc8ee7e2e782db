// SPDX-License-Identifier: Apache-2.0
// Tokens -> tree, in the grammar of jinja2 3.1 (jinja2/parser.py). Statements are in
// parser.cc, expressions in expression_parser.cc. One use.
#pragma once
#include <algorithm>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace strata::text {

class Parser {
 public:
  static constexpr int kMaxDepth = 100;

  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Block parse() { return parse_block({}); }

 private:
  using Kind = Expression::Kind;

  struct Nested {
    explicit Nested(Parser& parser) : parser_(parser) {
      if (++parser_.depth_ > kMaxDepth)
        template_unsupported(parser_.peek().line,
                             "nesting deeper than " + std::to_string(kMaxDepth));
    }
    ~Nested() { --parser_.depth_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;
    Parser& parser_;
  };

  [[nodiscard]] const Token& peek(size_t ahead = 0) const {
    return tokens_[std::min(pos_ + ahead, tokens_.size() - 1)];
  }
  const Token& next() {
    const Token& token = peek();
    if (pos_ + 1 < tokens_.size()) ++pos_;
    return token;
  }
  [[nodiscard]] bool at(Token::Kind kind, std::string_view text, size_t ahead = 0) const {
    return peek(ahead).kind == kind && peek(ahead).text == text;
  }
  [[nodiscard]] bool at_op(std::string_view op) const { return at(Token::Kind::kOperator, op); }
  [[nodiscard]] bool at_name(std::string_view name) const { return at(Token::Kind::kName, name); }
  bool take_op(std::string_view op) { return at_op(op) && (next(), true); }
  bool take_name(std::string_view name) { return at_name(name) && (next(), true); }
  void expect_op(std::string_view op) {
    if (!take_op(op)) fail("expected '" + std::string(op) + "'");
  }
  std::string expect_name() {
    if (peek().kind != Token::Kind::kName) fail("expected a name");
    return next().text;
  }
  void expect(Token::Kind kind, const char* what) {
    if (peek().kind != kind) fail(std::string("expected ") + what);
    next();
  }
  [[noreturn]] void fail(const std::string& message) const {
    const Token& token = peek();
    template_syntax(token.line,
                    message + ", got " +
                        (token.kind == Token::Kind::kEnd        ? "the end"
                         : token.kind == Token::Kind::kBlockEnd ? "'%}'"
                         : token.kind == Token::Kind::kPrintEnd ? "'}}'"
                                                                : "'" + token.text + "'"));
  }

  Block parse_block(std::initializer_list<std::string_view> ends);
  Block parse_statements(std::initializer_list<std::string_view> ends) {
    take_op(":");
    expect(Token::Kind::kBlockEnd, "'%}'");
    return parse_block(ends);
  }
  Statement parse_statement();
  Statement parse_for_statement();
  Statement parse_if_statement();
  Statement parse_set_statement();
  Statement parse_macro_statement();
  Statement parse_call_statement();
  Statement parse_with_statement();
  void parse_macro_body(std::string_view end, Statement& out);
  std::vector<Parameter> parse_signature();
  Target parse_target(bool with_namespace);
  Target parse_single_target(bool with_namespace);
  ExpressionPtr parse_tuple(bool with_conditional = true, bool parentheses = false,
                            std::string_view end_name = {});
  [[nodiscard]] bool is_at_tuple_end(std::string_view end_name) const;

  std::unique_ptr<Expression> make(Kind kind, int line) const {
    auto node = std::make_unique<Expression>();
    node->kind = kind;
    node->line = line;
    return node;
  }
  template <typename... Parts>
  std::unique_ptr<Expression> make(Kind kind, int line, Parts... parts) const {
    auto node = make(kind, line);
    (node->parts.push_back(std::move(parts)), ...);
    return node;
  }
  ExpressionPtr make_binary(int line, const std::string& op, ExpressionPtr a,
                            ExpressionPtr b) const {
    auto node = make(Kind::kBinary, line, std::move(a), std::move(b));
    node->name = op;
    return node;
  }

  ExpressionPtr parse_expression(bool with_conditional = true);
  ExpressionPtr parse_conditional();
  ExpressionPtr parse_disjunction();
  ExpressionPtr parse_conjunction();
  ExpressionPtr parse_negation();
  ExpressionPtr parse_comparison();
  ExpressionPtr parse_sum();
  ExpressionPtr parse_concat();
  ExpressionPtr parse_product();
  ExpressionPtr parse_power();
  ExpressionPtr parse_unary(bool with_filter = true);
  ExpressionPtr parse_primary();
  ExpressionPtr parse_name_or_literal();
  void note_implicit_argument(std::string_view name);
  ExpressionPtr make_constant(Value value, int line) const {
    auto node = make(Kind::kConst, line);
    node->value = std::move(value);
    return node;
  }
  ExpressionPtr parse_number();
  ExpressionPtr parse_list_or_dict();
  ExpressionPtr parse_postfix(ExpressionPtr node);
  ExpressionPtr parse_filter_expression(ExpressionPtr node);
  ExpressionPtr parse_subscript(ExpressionPtr node);
  ExpressionPtr parse_subscript_item();
  ExpressionPtr parse_call(ExpressionPtr node);
  ExpressionPtr parse_filter(ExpressionPtr node);
  ExpressionPtr parse_filter_chain(ExpressionPtr node, bool inline_start);
  ExpressionPtr parse_test(ExpressionPtr node);
  CallArguments parse_call_arguments();
  // A chain that a loop builds counts as nesting: the tree is as deep.
  ExpressionPtr with_counted_link(ExpressionPtr node, int& links) const {
    if (++links > kMaxDepth)
      template_unsupported(peek().line,
                           "a chain of more than " + std::to_string(kMaxDepth) + " links");
    return node;
  }

  std::vector<Token> tokens_;
  size_t pos_ = 0;
  int depth_ = 0;
  int loops_ = 0;
  bool says_varargs_ = false;
  bool says_kwargs_ = false;
  bool says_caller_ = false;
};

}  // namespace strata::text
