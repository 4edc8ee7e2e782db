// Tokens -> tree, in the grammar of jinja2 3.1 (jinja2/parser.py).
#include <algorithm>
#include <charconv>
#include <initializer_list>

#include "text/jinja_ast.h"
#include "text/jinja_lexer.h"

namespace strata::text {
namespace {

constexpr int kMaxDepth = 100;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Block parse() { return block({}); }

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

  Block block(std::initializer_list<std::string_view> ends);
  Block statements(std::initializer_list<std::string_view> ends) {
    take_op(":");
    expect(Token::Kind::kBlockEnd, "'%}'");
    return block(ends);
  }
  Statement statement();
  Statement for_statement();
  Statement if_statement();
  Statement set_statement();
  Statement macro_statement();
  Statement call_statement();
  Statement with_statement();
  void macro_body(std::string_view end, Statement& out);
  std::vector<Parameter> signature();
  Target target(bool with_namespace);
  Target single_target(bool with_namespace);
  ExpressionPtr tuple(bool with_conditional = true, bool parentheses = false,
                      std::string_view end_name = {});
  [[nodiscard]] bool tuple_ends(std::string_view end_name) const;

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
  ExpressionPtr binary(int line, const std::string& op, ExpressionPtr a, ExpressionPtr b) const {
    auto node = make(Kind::kBinary, line, std::move(a), std::move(b));
    node->name = op;
    return node;
  }

  ExpressionPtr expression(bool with_conditional = true);
  ExpressionPtr conditional();
  ExpressionPtr either();
  ExpressionPtr both();
  ExpressionPtr negation();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr concat();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr unary(bool with_filter = true);
  ExpressionPtr primary();
  ExpressionPtr constant(Value value, int line) const {
    auto node = make(Kind::kConst, line);
    node->value = std::move(value);
    return node;
  }
  ExpressionPtr number();
  ExpressionPtr dict();
  ExpressionPtr list();
  ExpressionPtr postfix(ExpressionPtr node);
  ExpressionPtr filters(ExpressionPtr node);
  ExpressionPtr subscript(ExpressionPtr node);
  ExpressionPtr subscribed();
  ExpressionPtr call(ExpressionPtr node);
  ExpressionPtr filter(ExpressionPtr node);
  ExpressionPtr filter_chain(ExpressionPtr node, bool inline_start);
  ExpressionPtr test(ExpressionPtr node);
  CallArguments call_arguments();
  // A chain that a loop builds counts as nesting: the tree is as deep.
  ExpressionPtr chained(ExpressionPtr node, int& links) const {
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
};

Block Parser::block(std::initializer_list<std::string_view> ends) {
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
      made.expression = tuple();
      expect(Token::Kind::kPrintEnd, "'}}'");
    } else {
      expect(Token::Kind::kBlockBegin, "a statement");
      if (peek().kind == Token::Kind::kName &&
          std::find(ends.begin(), ends.end(), peek().text) != ends.end())
        return out;
      made = statement();
      expect(Token::Kind::kBlockEnd, "'%}'");
    }
    out.push_back(std::move(made));
  }
}

Statement Parser::statement() {
  const int line = peek().line;
  const std::string word = expect_name();
  Statement out;
  if (word == "for") {
    out = for_statement();
  } else if (word == "if") {
    out = if_statement();
  } else if (word == "set") {
    out = set_statement();
  } else if (word == "macro") {
    out = macro_statement();
  } else if (word == "call") {
    out = call_statement();
  } else if (word == "with") {
    out = with_statement();
  } else if (word == "filter") {
    out.kind = Statement::Kind::kFilterBlock;
    out.expression = filter_chain(nullptr, true);
    out.body = statements({"endfilter"});
    next();
  } else if (word == "generation") {
    out.kind = Statement::Kind::kGeneration;
    out.body = statements({"endgeneration"});
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

Statement Parser::for_statement() {
  Statement out;
  out.kind = Statement::Kind::kFor;
  out.target = target(false);
  if (!take_name("in")) fail("expected 'in'");
  out.expression = tuple(false, false, "recursive");
  if (take_name("if")) out.test = expression();
  out.recursive = take_name("recursive");
  ++loops_;
  out.body = statements({"else", "endfor"});
  --loops_;
  if (next().text == "else") {
    out.otherwise = statements({"endfor"});
    next();
  }
  return out;
}

Statement Parser::if_statement() {
  Statement out;
  out.kind = Statement::Kind::kIf;
  for (;;) {
    ExpressionPtr test = tuple(false);
    Block body = statements({"elif", "else", "endif"});
    out.branches.emplace_back(std::move(test), std::move(body));
    const std::string word = next().text;
    if (word == "elif") continue;
    if (word == "else") {
      out.branches.emplace_back(nullptr, statements({"endif"}));
      next();
    }
    return out;
  }
}

Statement Parser::set_statement() {
  Statement out;
  out.target = target(true);
  if (take_op("=")) {
    out.kind = Statement::Kind::kSet;
    out.expression = tuple();
    return out;
  }
  out.kind = Statement::Kind::kSetBlock;
  if (at_op("|")) out.expression = filter_chain(nullptr, false);
  out.body = statements({"endset"});
  next();
  return out;
}

std::vector<Parameter> Parser::signature() {
  std::vector<Parameter> out;
  expect_op("(");
  while (!at_op(")")) {
    if (!out.empty()) expect_op(",");
    if (at_op(")")) break;
    Parameter parameter;
    parameter.name = expect_name();
    if (take_op("=")) {
      parameter.fallback = expression();
    } else if (!out.empty() && out.back().fallback) {
      fail("non-default argument follows default argument");
    }
    out.push_back(std::move(parameter));
  }
  expect_op(")");
  return out;
}

Statement Parser::macro_statement() {
  Statement out;
  out.kind = Statement::Kind::kMacro;
  out.name = expect_name();
  out.parameters = signature();
  macro_body("endmacro", out);
  return out;
}

Statement Parser::call_statement() {
  Statement out;
  out.kind = Statement::Kind::kCallBlock;
  if (at_op("(")) out.parameters = signature();
  out.expression = expression();
  if (out.expression->kind != Kind::kCall) fail("expected a call");
  macro_body("endcall", out);
  return out;
}

void Parser::macro_body(std::string_view end, Statement& out) {
  const int loops = std::exchange(loops_, 0);
  const bool says_varargs = std::exchange(says_varargs_, false);
  const bool says_kwargs = std::exchange(says_kwargs_, false);
  out.body = statements({end});
  out.takes_rest = std::exchange(says_varargs_, says_varargs);
  out.takes_rest_named = std::exchange(says_kwargs_, says_kwargs);
  loops_ = loops;
  next();
}

Statement Parser::with_statement() {
  Statement out;
  out.kind = Statement::Kind::kWith;
  while (peek().kind != Token::Kind::kBlockEnd) {
    if (!out.bindings.empty()) expect_op(",");
    Target bound = target(false);
    expect_op("=");
    out.bindings.emplace_back(std::move(bound), expression());
  }
  out.body = statements({"endwith"});
  next();
  return out;
}

Target Parser::single_target(bool with_namespace) {
  Target out;
  if (take_op("(")) {
    const Nested nested(*this);
    out = target(with_namespace);
    expect_op(")");
    return out;
  }
  out.name = expect_name();
  for (const char* word : {"true", "True", "false", "False", "none", "None"})
    if (out.name == word) fail("can't assign to '" + out.name + "'");
  if (with_namespace && take_op(".")) out.attribute = expect_name();
  return out;
}

Target Parser::target(bool with_namespace) {
  Target first = single_target(with_namespace);
  if (!at_op(",")) return first;
  Target out;
  out.targets.push_back(std::move(first));
  while (take_op(",")) {
    if (at_name("in") || at_op("=") || at_op(")") || peek().kind == Token::Kind::kBlockEnd) break;
    out.targets.push_back(single_target(with_namespace));
  }
  return out;
}

bool Parser::tuple_ends(std::string_view end_name) const {
  const Token::Kind kind = peek().kind;
  return kind == Token::Kind::kPrintEnd || kind == Token::Kind::kBlockEnd || at_op(")") ||
         (!end_name.empty() && at_name(end_name));
}

ExpressionPtr Parser::tuple(bool with_conditional, bool parentheses, std::string_view end_name) {
  const int line = peek().line;
  std::vector<ExpressionPtr> items;
  bool is_tuple = false;
  for (;;) {
    if (!items.empty()) expect_op(",");
    if (tuple_ends(end_name)) break;
    items.push_back(expression(with_conditional));
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

ExpressionPtr Parser::expression(bool with_conditional) {
  const Nested nested(*this);
  return with_conditional ? conditional() : either();
}

ExpressionPtr Parser::conditional() {
  const int line = peek().line;
  ExpressionPtr node = either();
  int links = 0;
  while (take_name("if")) {
    ExpressionPtr test = either();
    ExpressionPtr otherwise;
    if (take_name("else")) {
      const Nested nested(*this);
      otherwise = conditional();
    }
    node = chained(
        make(Kind::kConditional, line, std::move(test), std::move(node), std::move(otherwise)),
        links);
  }
  return node;
}

ExpressionPtr Parser::either() {
  ExpressionPtr node = both();
  int links = 0;
  for (int line = peek().line; take_name("or"); line = peek().line)
    node = chained(make(Kind::kOr, line, std::move(node), both()), links);
  return node;
}

ExpressionPtr Parser::both() {
  ExpressionPtr node = negation();
  int links = 0;
  for (int line = peek().line; take_name("and"); line = peek().line)
    node = chained(make(Kind::kAnd, line, std::move(node), negation()), links);
  return node;
}

ExpressionPtr Parser::negation() {
  const int line = peek().line;
  if (!take_name("not")) return comparison();
  const Nested nested(*this);
  return make(Kind::kNot, line, negation());
}

ExpressionPtr Parser::comparison() {
  const int line = peek().line;
  ExpressionPtr first = sum();
  std::unique_ptr<Expression> node;
  const auto add = [&](const std::string& op) {
    if (!node) node = make(Kind::kCompare, line, std::move(first));
    node->operators.push_back(op);
    node->parts.push_back(sum());
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

ExpressionPtr Parser::sum() {
  ExpressionPtr node = concat();
  int links = 0;
  while (at_op("+") || at_op("-")) {
    const int line = peek().line;
    const std::string op = next().text;
    node = chained(binary(line, op, std::move(node), concat()), links);
  }
  return node;
}

ExpressionPtr Parser::concat() {
  const int line = peek().line;
  ExpressionPtr first = product();
  if (!at_op("~")) return first;
  auto node = make(Kind::kConcat, line, std::move(first));
  while (take_op("~")) node->parts.push_back(product());
  return node;
}

ExpressionPtr Parser::product() {
  ExpressionPtr node = power();
  int links = 0;
  while (at_op("*") || at_op("/") || at_op("//") || at_op("%")) {
    const int line = peek().line;
    const std::string op = next().text;
    node = chained(binary(line, op, std::move(node), power()), links);
  }
  return node;
}

ExpressionPtr Parser::power() {
  ExpressionPtr node = unary();
  int links = 0;
  for (int line = peek().line; take_op("**"); line = peek().line)
    node = chained(binary(line, "**", std::move(node), unary()), links);
  return node;
}

ExpressionPtr Parser::unary(bool with_filter) {
  const Nested nested(*this);
  const int line = peek().line;
  ExpressionPtr node;
  if (take_op("-")) {
    node = make(Kind::kNegate, line, unary(false));
  } else if (take_op("+")) {
    node = make(Kind::kPlus, line, unary(false));
  } else {
    node = primary();
  }
  node = postfix(std::move(node));
  return with_filter ? filters(std::move(node)) : std::move(node);
}

ExpressionPtr Parser::number() {
  const Token& token = next();
  const char* begin = token.text.data();
  const char* end = begin + token.text.size();
  if (token.kind == Token::Kind::kFloat) {
    double value = 0;
    std::from_chars(begin, end, value);
    return constant(value, token.line);
  }
  int64_t value = 0;
  if (std::from_chars(begin, end, value).ec != std::errc())
    template_unsupported(token.line, "the integer " + token.text);
  return constant(value, token.line);
}

ExpressionPtr Parser::primary() {
  const Token& token = peek();
  const int line = token.line;
  if (token.kind == Token::Kind::kName) {
    const std::string name = next().text;
    if (name == "true" || name == "True") return constant(true, line);
    if (name == "false" || name == "False") return constant(false, line);
    if (name == "none" || name == "None") return constant({}, line);
    says_varargs_ = says_varargs_ || name == "varargs";
    says_kwargs_ = says_kwargs_ || name == "kwargs";
    auto node = make(Kind::kName, line);
    node->name = name;
    return node;
  }
  if (token.kind == Token::Kind::kString) {
    std::string text;
    while (peek().kind == Token::Kind::kString) text += next().text;
    return constant(std::move(text), line);
  }
  if (token.kind == Token::Kind::kInteger || token.kind == Token::Kind::kFloat) return number();
  if (take_op("(")) {
    ExpressionPtr node = tuple(true, true);
    expect_op(")");
    return node;
  }
  if (at_op("[")) return list();
  if (at_op("{")) return dict();
  fail("expected an expression");
}

ExpressionPtr Parser::list() {
  auto node = make(Kind::kList, next().line);
  while (!at_op("]")) {
    if (!node->parts.empty()) expect_op(",");
    if (at_op("]")) break;
    node->parts.push_back(expression());
  }
  expect_op("]");
  return node;
}

ExpressionPtr Parser::dict() {
  auto node = make(Kind::kDict, next().line);
  while (!at_op("}")) {
    if (!node->parts.empty()) expect_op(",");
    if (at_op("}")) break;
    node->parts.push_back(expression());
    expect_op(":");
    node->parts.push_back(expression());
  }
  expect_op("}");
  return node;
}

ExpressionPtr Parser::postfix(ExpressionPtr node) {
  for (int links = 0;;) {
    if (at_op(".") || at_op("[")) {
      node = chained(subscript(std::move(node)), links);
    } else if (at_op("(")) {
      node = chained(call(std::move(node)), links);
    } else {
      return node;
    }
  }
}

ExpressionPtr Parser::filters(ExpressionPtr node) {
  for (int links = 0;;) {
    if (at_op("|")) {
      node = chained(filter_chain(std::move(node), false), links);
    } else if (at_name("is")) {
      node = chained(test(std::move(node)), links);
    } else if (at_op("(")) {
      node = chained(call(std::move(node)), links);
    } else {
      return node;
    }
  }
}

ExpressionPtr Parser::subscript(ExpressionPtr node) {
  const int line = peek().line;
  if (take_op(".")) {
    if (peek().kind == Token::Kind::kInteger)
      return make(Kind::kItem, line, std::move(node), number());
    auto out = make(Kind::kAttribute, line, std::move(node));
    out->name = expect_name();
    return out;
  }
  expect_op("[");
  ExpressionPtr index = subscribed();
  if (at_op(",")) template_unsupported(line, "a subscript of more than one part");
  expect_op("]");
  return make(Kind::kItem, line, std::move(node), std::move(index));
}

ExpressionPtr Parser::subscribed() {
  const int line = peek().line;
  std::vector<ExpressionPtr> parts(3);
  if (!at_op(":")) {
    parts[0] = expression();
    if (!at_op(":")) return std::move(parts[0]);
  }
  next();
  if (!at_op(":") && !at_op("]") && !at_op(",")) parts[1] = expression();
  if (take_op(":") && !at_op("]") && !at_op(",")) parts[2] = expression();
  auto node = make(Kind::kSlice, line);
  node->parts = std::move(parts);
  return node;
}

CallArguments Parser::call_arguments() {
  CallArguments out;
  expect_op("(");
  bool first = true;
  while (!at_op(")")) {
    if (!first) expect_op(",");
    if (at_op(")")) break;
    first = false;
    if (take_op("**")) {
      if (out.rest_named) fail("invalid syntax for function call expression");
      out.rest_named = expression();
    } else if (take_op("*")) {
      if (out.rest || out.rest_named) fail("invalid syntax for function call expression");
      out.rest = expression();
    } else if (peek().kind == Token::Kind::kName && at(Token::Kind::kOperator, "=", 1)) {
      if (out.rest_named) fail("invalid syntax for function call expression");
      std::string name = next().text;
      next();
      out.named.emplace_back(std::move(name), expression());
    } else {
      if (out.rest || out.rest_named || !out.named.empty())
        fail("invalid syntax for function call expression");
      out.positional.push_back(expression());
    }
  }
  expect_op(")");
  return out;
}

ExpressionPtr Parser::call(ExpressionPtr node) {
  auto out = make(Kind::kCall, peek().line, std::move(node));
  out->arguments = call_arguments();
  return out;
}

ExpressionPtr Parser::filter(ExpressionPtr node) {
  auto out = make(Kind::kFilter, peek().line, std::move(node));
  out->name = expect_name();
  if (at_op(".")) template_unsupported(out->line, "a filter with a dot in its name");
  if (at_op("(")) out->arguments = call_arguments();
  return out;
}

ExpressionPtr Parser::filter_chain(ExpressionPtr node, bool inline_start) {
  int links = 0;
  if (inline_start) node = filter(std::move(node));
  while (take_op("|")) node = chained(filter(std::move(node)), links);
  return node;
}

ExpressionPtr Parser::test(ExpressionPtr node) {
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
    out->arguments = call_arguments();
  } else if (begins_argument) {
    if (at_name("is")) fail("You cannot chain multiple tests with is");
    out->arguments.positional.push_back(postfix(primary()));
  }
  if (!negated) return out;
  return make(Kind::kNot, line, std::move(out));
}

}  // namespace

Block parse_template(std::string_view source) { return Parser(lex_template(source)).parse(); }

}  // namespace strata::text
