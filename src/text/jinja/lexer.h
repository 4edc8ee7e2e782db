// SPDX-License-Identifier: Apache-2.0
// A template's text as tokens, as jinja2 cuts it with trim_blocks and lstrip_blocks on.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace strata::text {

struct Token {
  enum class Kind {
    kText,
    kBlockBegin,
    kBlockEnd,
    kPrintBegin,
    kPrintEnd,
    kName,
    kString,
    kInteger,
    kFloat,
    kOperator,
    kEnd,
  };
  Kind kind = Kind::kEnd;
  std::string text;  // the decoded string, or as written
  int line = 0;
};

std::vector<Token> lex_template(std::string_view source);

// An Error that names the line.
[[noreturn]] void template_syntax(int line, const std::string& message);
[[noreturn]] void template_unsupported(int line, const std::string& construct);

}  // namespace strata::text
