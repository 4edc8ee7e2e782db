// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/parser.h"

namespace strata::text {

Block Parser::parse_block(std::initializer_list<std::string_view> ends) {
  const Nested nested(*this);
  Block out;
  for (;;) {
    const Token& token = peek();
    Statement made;
    made.line = token.line;
    if (token.kind == Token::Kind::kEnd) {
      if (ends.size() == 0) return out;
      fail("unexpected end of template: expected '" + std::string(*(ends.end() - 1)) + "'");
    }
    if (token.kind == Token::Kind::kText) {
      made.kind = Statement::Kind::kText;
      made.text = next().text;
    } else if (token.kind == Token::Kind::kPrintBegin) {
      next();
      made.kind = Statement::Kind::kPrint;
      made.expression = parse_tuple();
      expect(Token::Kind::kPrintEnd, "'}}'");
    } else {
      expect(Token::Kind::kBlockBegin, "a statement");
      if (peek().kind == Token::Kind::kName &&
          std::find(ends.begin(), ends.end(), peek().text) != ends.end())
        return out;
      made = parse_statement();
      expect(Token::Kind::kBlockEnd, "'%}'");
    }
    out.push_back(std::move(made));
  }
}

Statement Parser::parse_statement() {
  const int line = peek().line;
  const std::string word = expect_name();
  Statement out;
  constexpr std::pair<std::string_view, Statement (Parser::*)()> kStatements[] = {
      {"for", &Parser::parse_for_statement},   {"if", &Parser::parse_if_statement},
      {"set", &Parser::parse_set_statement},   {"macro", &Parser::parse_macro_statement},
      {"call", &Parser::parse_call_statement}, {"with", &Parser::parse_with_statement}};
  const auto* known =
      std::ranges::find(kStatements, word, [](const auto& row) { return row.first; });
  if (known != std::end(kStatements)) {
    out = (this->*known->second)();
  } else if (word == "filter") {
    out.kind = Statement::Kind::kFilterBlock;
    out.expression = parse_filter_chain(nullptr, true);
    out.body = parse_statements({"endfilter"});
    next();
  } else if (word == "generation") {
    out.kind = Statement::Kind::kGeneration;
    const int loops = std::exchange(loops_, 0);  // transformers makes a macro of it
    out.body = parse_statements({"endgeneration"});
    loops_ = loops;
    next();
  } else if (word == "break" || word == "continue") {
    out.kind = word == "break" ? Statement::Kind::kBreak : Statement::Kind::kContinue;
    if (loops_ == 0) template_syntax(line, "'" + word + "' outside a loop");
  } else {
    template_unsupported(line, "the statement '" + word + "'");
  }
  out.line = line;
  return out;
}

Statement Parser::parse_for_statement() {
  Statement out;
  out.kind = Statement::Kind::kFor;
  out.target = parse_target(false);
  if (!take_name("in")) fail("expected 'in'");
  out.expression = parse_tuple(false, false, "recursive");
  if (take_name("if")) out.test = parse_expression();
  out.recursive = take_name("recursive");
  ++loops_;
  out.body = parse_statements({"else", "endfor"});
  --loops_;
  if (next().text == "else") {
    const int loops = loops_;
    if (out.recursive) loops_ = 0;  // a function, as a macro's body
    out.otherwise = parse_statements({"endfor"});
    loops_ = loops;
    next();
  }
  return out;
}

Statement Parser::parse_if_statement() {
  Statement out;
  out.kind = Statement::Kind::kIf;
  for (;;) {
    ExpressionPtr test = parse_tuple(false);
    Block body = parse_statements({"elif", "else", "endif"});
    out.branches.emplace_back(std::move(test), std::move(body));
    const std::string word = next().text;
    if (word == "elif") continue;
    if (word == "else") {
      out.branches.emplace_back(nullptr, parse_statements({"endif"}));
      next();
    }
    return out;
  }
}

Statement Parser::parse_set_statement() {
  Statement out;
  out.target = parse_target(true);
  if (take_op("=")) {
    out.kind = Statement::Kind::kSet;
    out.expression = parse_tuple();
    return out;
  }
  out.kind = Statement::Kind::kSetBlock;
  if (at_op("|")) out.expression = parse_filter_chain(nullptr, false);
  out.body = parse_statements({"endset"});
  next();
  return out;
}

std::vector<Parameter> Parser::parse_signature() {
  std::vector<Parameter> out;
  expect_op("(");
  while (!at_op(")")) {
    if (!out.empty()) expect_op(",");
    if (at_op(")")) break;
    Parameter parameter;
    parameter.name = expect_name();
    if (take_op("=")) {
      parameter.fallback = parse_expression();
    } else if (!out.empty() && out.back().fallback) {
      fail("non-default argument follows default argument");
    }
    out.push_back(std::move(parameter));
  }
  expect_op(")");
  return out;
}

Statement Parser::parse_macro_statement() {
  Statement out;
  out.kind = Statement::Kind::kMacro;
  out.name = expect_name();
  out.parameters = parse_signature();
  parse_macro_body("endmacro", out);
  return out;
}

Statement Parser::parse_call_statement() {
  Statement out;
  out.kind = Statement::Kind::kCallBlock;
  if (at_op("(")) out.parameters = parse_signature();
  out.expression = parse_expression();
  if (out.expression->kind != Kind::kCall) fail("expected a call");
  parse_macro_body("endcall", out);
  return out;
}

void Parser::parse_macro_body(std::string_view end, Statement& out) {
  const int loops = std::exchange(loops_, 0);
  const bool says_varargs = std::exchange(says_varargs_, false);
  const bool says_kwargs = std::exchange(says_kwargs_, false);
  const bool says_caller = std::exchange(says_caller_, false);
  out.body = parse_statements({end});
  out.takes_rest = says_varargs_;
  out.takes_rest_named = says_kwargs_;
  out.takes_caller = says_caller_;
  // A macro around it says what this one does.
  says_varargs_ = says_varargs_ || says_varargs;
  says_kwargs_ = says_kwargs_ || says_kwargs;
  says_caller_ = says_caller_ || says_caller;
  loops_ = loops;
  next();
}

Statement Parser::parse_with_statement() {
  Statement out;
  out.kind = Statement::Kind::kWith;
  while (peek().kind != Token::Kind::kBlockEnd) {
    if (!out.bindings.empty()) expect_op(",");
    Target bound = parse_target(false);
    expect_op("=");
    out.bindings.emplace_back(std::move(bound), parse_expression());
  }
  out.body = parse_statements({"endwith"});
  next();
  return out;
}

Target Parser::parse_single_target(bool with_namespace) {
  Target out;
  if (take_op("(")) {
    const Nested nested(*this);
    out = parse_target(with_namespace);
    expect_op(")");
    return out;
  }
  out.name = expect_name();
  for (const char* word : {"true", "True", "false", "False", "none", "None"})
    if (out.name == word) fail("can't assign to '" + out.name + "'");
  if (with_namespace && take_op(".")) out.attribute = expect_name();
  return out;
}

Target Parser::parse_target(bool with_namespace) {
  Target first = parse_single_target(with_namespace);
  if (!at_op(",")) return first;
  Target out;
  out.targets.push_back(std::move(first));
  while (take_op(",")) {
    if (at_name("in") || at_op("=") || at_op(")") || peek().kind == Token::Kind::kBlockEnd) break;
    out.targets.push_back(parse_single_target(with_namespace));
  }
  return out;
}

Block parse_template(std::string_view source) { return Parser(lex_template(source)).parse(); }

}  // namespace strata::text
