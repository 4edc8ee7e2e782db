// SPDX-License-Identifier: Apache-2.0
#include <charconv>
#include <cstdlib>

#include "text/jinja/parser.h"

namespace strata::text {

bool Parser::is_at_tuple_end(std::string_view end_name) const {
  const Token::Kind kind = peek().kind;
  return kind == Token::Kind::kPrintEnd || kind == Token::Kind::kBlockEnd || at_op(")") ||
         (!end_name.empty() && at_name(end_name));
}

ExpressionPtr Parser::parse_tuple(bool with_conditional, bool parentheses,
                                  std::string_view end_name) {
  const int line = peek().line;
  std::vector<ExpressionPtr> items;
  bool is_tuple = false;
  for (;;) {
    if (!items.empty()) expect_op(",");
    if (is_at_tuple_end(end_name)) break;
    items.push_back(parse_expression(with_conditional));
    if (!at_op(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) {
    if (!items.empty()) return std::move(items[0]);
    if (!parentheses) fail("expected an expression");
  }
  auto node = make(Kind::kTuple, line);
  node->parts = std::move(items);
  return node;
}

ExpressionPtr Parser::parse_expression(bool with_conditional) {
  const Nested nested(*this);
  return with_conditional ? parse_conditional() : parse_disjunction();
}

ExpressionPtr Parser::parse_conditional() {
  const int line = peek().line;
  ExpressionPtr node = parse_disjunction();
  int links = 0;
  while (take_name("if")) {
    ExpressionPtr test = parse_disjunction();
    ExpressionPtr otherwise;
    if (take_name("else")) {
      const Nested nested(*this);
      otherwise = parse_conditional();
    }
    node = with_counted_link(
        make(Kind::kConditional, line, std::move(test), std::move(node), std::move(otherwise)),
        links);
  }
  return node;
}

ExpressionPtr Parser::parse_disjunction() {
  ExpressionPtr node = parse_conjunction();
  int links = 0;
  for (int line = peek().line; take_name("or"); line = peek().line)
    node = with_counted_link(make(Kind::kOr, line, std::move(node), parse_conjunction()), links);
  return node;
}

ExpressionPtr Parser::parse_conjunction() {
  ExpressionPtr node = parse_negation();
  int links = 0;
  for (int line = peek().line; take_name("and"); line = peek().line)
    node = with_counted_link(make(Kind::kAnd, line, std::move(node), parse_negation()), links);
  return node;
}

ExpressionPtr Parser::parse_negation() {
  const int line = peek().line;
  if (!take_name("not")) return parse_comparison();
  const Nested nested(*this);
  return make(Kind::kNot, line, parse_negation());
}

ExpressionPtr Parser::parse_comparison() {
  const int line = peek().line;
  ExpressionPtr first = parse_sum();
  std::unique_ptr<Expression> node;
  const auto add = [&](const std::string& op) {
    if (!node) node = make(Kind::kCompare, line, std::move(first));
    node->operators.push_back(op);
    node->parts.push_back(parse_sum());
  };
  for (;;) {
    const Token& token = peek();
    constexpr std::string_view kOperators[] = {"==", "!=", "<", "<=", ">", ">="};
    if (token.kind == Token::Kind::kOperator &&
        std::find(std::begin(kOperators), std::end(kOperators), token.text) !=
            std::end(kOperators)) {
      const std::string op = next().text;
      add(op);
    } else if (take_name("in")) {
      add("in");
    } else if (at_name("not") && at(Token::Kind::kName, "in", 1)) {
      next();
      next();
      add("not in");
    } else {
      return node ? ExpressionPtr(std::move(node)) : std::move(first);
    }
  }
}

ExpressionPtr Parser::parse_sum() {
  ExpressionPtr node = parse_concat();
  int links = 0;
  while (at_op("+") || at_op("-")) {
    const int line = peek().line;
    const std::string op = next().text;
    node = with_counted_link(make_binary(line, op, std::move(node), parse_concat()), links);
  }
  return node;
}

ExpressionPtr Parser::parse_concat() {
  const int line = peek().line;
  ExpressionPtr first = parse_product();
  if (!at_op("~")) return first;
  auto node = make(Kind::kConcat, line, std::move(first));
  while (take_op("~")) node->parts.push_back(parse_product());
  return node;
}

ExpressionPtr Parser::parse_product() {
  ExpressionPtr node = parse_power();
  int links = 0;
  while (at_op("*") || at_op("/") || at_op("//") || at_op("%")) {
    const int line = peek().line;
    const std::string op = next().text;
    node = with_counted_link(make_binary(line, op, std::move(node), parse_power()), links);
  }
  return node;
}

ExpressionPtr Parser::parse_power() {
  ExpressionPtr node = parse_unary();
  int links = 0;
  for (int line = peek().line; take_op("**"); line = peek().line)
    node = with_counted_link(make_binary(line, "**", std::move(node), parse_unary()), links);
  return node;
}

ExpressionPtr Parser::parse_unary(bool with_filter) {
  const Nested nested(*this);
  const int line = peek().line;
  ExpressionPtr node;
  if (take_op("-")) {
    node = make(Kind::kNegate, line, parse_unary(false));
  } else if (take_op("+")) {
    node = make(Kind::kPlus, line, parse_unary(false));
  } else {
    node = parse_primary();
  }
  node = parse_postfix(std::move(node));
  return with_filter ? parse_filter_expression(std::move(node)) : std::move(node);
}

ExpressionPtr Parser::parse_number() {
  const Token& token = next();
  const char* begin = token.text.data();
  const char* end = begin + token.text.size();
  if (token.kind == Token::Kind::kFloat) {
    double value = 0;
    // Out of range: 1e400 is inf, 1e-400 zero, which from_chars leaves to the caller.
    if (std::from_chars(begin, end, value).ec != std::errc())
      value = std::strtod(token.text.c_str(), nullptr);
    return make_constant(value, token.line);
  }
  int64_t value = 0;
  if (std::from_chars(begin, end, value).ec != std::errc())
    template_unsupported(token.line, "the integer " + token.text);
  return make_constant(value, token.line);
}

// A macro whose body says one of these takes what no parameter of it takes.
void Parser::note_implicit_argument(std::string_view name) {
  says_varargs_ = says_varargs_ || name == "varargs";
  says_kwargs_ = says_kwargs_ || name == "kwargs";
  says_caller_ = says_caller_ || name == "caller";
}

ExpressionPtr Parser::parse_name_or_literal() {
  const int line = peek().line;
  const std::string name = next().text;
  if (name == "true" || name == "True") return make_constant(true, line);
  if (name == "false" || name == "False") return make_constant(false, line);
  if (name == "none" || name == "None") return make_constant({}, line);
  note_implicit_argument(name);
  auto node = make(Kind::kName, line);
  node->name = name;
  return node;
}

ExpressionPtr Parser::parse_primary() {
  const Token& token = peek();
  const int line = token.line;
  if (token.kind == Token::Kind::kName) return parse_name_or_literal();
  if (token.kind == Token::Kind::kString) {
    std::string text;
    while (peek().kind == Token::Kind::kString) text += next().text;
    return make_constant(std::move(text), line);
  }
  if (token.kind == Token::Kind::kInteger || token.kind == Token::Kind::kFloat)
    return parse_number();
  if (take_op("(")) {
    ExpressionPtr node = parse_tuple(true, true);
    expect_op(")");
    return node;
  }
  if (at_op("[") || at_op("{")) return parse_list_or_dict();
  fail("expected an expression");
}

ExpressionPtr Parser::parse_list_or_dict() {
  const bool is_dict = at_op("{");
  const char* close = is_dict ? "}" : "]";
  auto node = make(is_dict ? Kind::kDict : Kind::kList, next().line);
  while (!at_op(close)) {
    if (!node->parts.empty()) expect_op(",");
    if (at_op(close)) break;
    node->parts.push_back(parse_expression());
    if (is_dict) {
      expect_op(":");
      node->parts.push_back(parse_expression());
    }
  }
  expect_op(close);
  return node;
}

ExpressionPtr Parser::parse_postfix(ExpressionPtr node) {
  for (int links = 0;;) {
    if (at_op(".") || at_op("[")) {
      node = with_counted_link(parse_subscript(std::move(node)), links);
    } else if (at_op("(")) {
      node = with_counted_link(parse_call(std::move(node)), links);
    } else {
      return node;
    }
  }
}

ExpressionPtr Parser::parse_filter_expression(ExpressionPtr node) {
  for (int links = 0;;) {
    if (at_op("|")) {
      node = with_counted_link(parse_filter_chain(std::move(node), false), links);
    } else if (at_name("is")) {
      node = with_counted_link(parse_test(std::move(node)), links);
    } else if (at_op("(")) {
      node = with_counted_link(parse_call(std::move(node)), links);
    } else {
      return node;
    }
  }
}

ExpressionPtr Parser::parse_subscript(ExpressionPtr node) {
  const int line = peek().line;
  if (take_op(".")) {
    if (peek().kind == Token::Kind::kInteger)
      return make(Kind::kItem, line, std::move(node), parse_number());
    auto out = make(Kind::kAttribute, line, std::move(node));
    out->name = expect_name();
    return out;
  }
  expect_op("[");
  ExpressionPtr index = parse_subscript_item();
  if (at_op(",")) template_unsupported(line, "a subscript of more than one part");
  expect_op("]");
  return make(Kind::kItem, line, std::move(node), std::move(index));
}

ExpressionPtr Parser::parse_subscript_item() {
  const int line = peek().line;
  std::vector<ExpressionPtr> parts(3);
  if (!at_op(":")) {
    parts[0] = parse_expression();
    if (!at_op(":")) return std::move(parts[0]);
  }
  next();
  if (!at_op(":") && !at_op("]") && !at_op(",")) parts[1] = parse_expression();
  if (take_op(":") && !at_op("]") && !at_op(",")) parts[2] = parse_expression();
  auto node = make(Kind::kSlice, line);
  node->parts = std::move(parts);
  return node;
}

CallArguments Parser::parse_call_arguments() {
  CallArguments out;
  expect_op("(");
  bool first = true;
  while (!at_op(")")) {
    if (!first) expect_op(",");
    if (at_op(")")) break;
    first = false;
    if (take_op("**")) {
      if (out.rest_named) fail("invalid syntax for function call expression");
      out.rest_named = parse_expression();
    } else if (take_op("*")) {
      if (out.rest || out.rest_named) fail("invalid syntax for function call expression");
      out.rest = parse_expression();
    } else if (peek().kind == Token::Kind::kName && at(Token::Kind::kOperator, "=", 1)) {
      if (out.rest_named) fail("invalid syntax for function call expression");
      std::string name = next().text;
      next();
      out.named.emplace_back(std::move(name), parse_expression());
    } else {
      if (out.rest || out.rest_named || !out.named.empty())
        fail("invalid syntax for function call expression");
      out.positional.push_back(parse_expression());
    }
  }
  expect_op(")");
  return out;
}

ExpressionPtr Parser::parse_call(ExpressionPtr node) {
  auto out = make(Kind::kCall, peek().line, std::move(node));
  out->arguments = parse_call_arguments();
  return out;
}

ExpressionPtr Parser::parse_filter(ExpressionPtr node) {
  auto out = make(Kind::kFilter, peek().line, std::move(node));
  out->name = expect_name();
  if (at_op(".")) template_unsupported(out->line, "a filter with a dot in its name");
  if (at_op("(")) out->arguments = parse_call_arguments();
  return out;
}

ExpressionPtr Parser::parse_filter_chain(ExpressionPtr node, bool inline_start) {
  int links = 0;
  if (inline_start) node = parse_filter(std::move(node));
  while (take_op("|")) node = with_counted_link(parse_filter(std::move(node)), links);
  return node;
}

ExpressionPtr Parser::parse_test(ExpressionPtr node) {
  const int line = next().line;
  const bool negated = take_name("not");
  auto out = make(Kind::kTest, line, std::move(node));
  out->name = expect_name();
  const Token& token = peek();
  const bool begins_argument = token.kind == Token::Kind::kString ||
                               token.kind == Token::Kind::kInteger ||
                               token.kind == Token::Kind::kFloat || at_op("[") || at_op("{") ||
                               (token.kind == Token::Kind::kName && token.text != "else" &&
                                token.text != "or" && token.text != "and");
  if (at_op("(")) {
    out->arguments = parse_call_arguments();
  } else if (begins_argument) {
    if (at_name("is")) fail("You cannot chain multiple tests with is");
    out->arguments.positional.push_back(parse_postfix(parse_primary()));
  }
  if (!negated) return out;
  return make(Kind::kNot, line, std::move(out));
}

}  // namespace strata::text
