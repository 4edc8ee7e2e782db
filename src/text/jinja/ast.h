// SPDX-License-Identifier: Apache-2.0
// The tree of a chat template. Nodes are immutable after parsing.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace strata::text {

struct Expression;
using ExpressionPtr = std::unique_ptr<const Expression>;

struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr rest;        // *args
  ExpressionPtr rest_named;  // **kwargs
};

struct Expression {
  enum class Kind {
    kConst,
    kName,         // name
    kList,         // parts
    kTuple,        // parts
    kDict,         // parts: key, value, key, value, ...
    kNegate,       // parts[0]
    kPlus,         // parts[0]
    kNot,          // parts[0]
    kAnd,          // parts[0], parts[1]
    kOr,           // parts[0], parts[1]
    kBinary,       // name is the operator: + - * / // % **
    kConcat,       // parts joined by ~
    kCompare,      // parts[0] operators[0] parts[1] operators[1] ...
    kConditional,  // parts: test, then, else (may be null)
    kAttribute,    // parts[0].name
    kItem,         // parts[0][parts[1]]
    kSlice,        // parts: begin, end, step, each may be null
    kCall,         // parts[0](arguments)
    kFilter,       // parts[0] | name(arguments); parts[0] is null in a filter block
    kTest,         // parts[0] is name(arguments)
  };
  Kind kind = Kind::kConst;
  int line = 0;
  std::string name;
  Value value;  // kConst
  std::vector<ExpressionPtr> parts;
  std::vector<std::string> operators;  // kCompare
  CallArguments arguments;
};

// What an assignment or a loop binds: a name, an attribute of a namespace, or a tuple of targets.
struct Target {
  std::string name;
  std::string attribute;        // of the namespace `name`
  std::vector<Target> targets;  // a tuple when not empty
};

struct Parameter {
  std::string name;
  ExpressionPtr fallback;  // may be null
};

struct Statement;
using Block = std::vector<Statement>;

struct Statement {
  enum class Kind {
    kText,         // text
    kPrint,        // expression
    kIf,           // branches: test and body; the last test is null for else
    kFor,          // target in expression if test: body, else otherwise
    kSet,          // target = expression
    kSetBlock,     // target = body through expression (a filter, may be null)
    kMacro,        // name(parameters): body
    kCallBlock,    // expression is the call; parameters and body make `caller`
    kFilterBlock,  // body through expression
    kWith,         // targets = values: body
    kGeneration,   // body, in its own scope
    kBreak,
    kContinue,
  };
  Kind kind = Kind::kText;
  int line = 0;
  std::string text;
  std::string name;
  ExpressionPtr expression;
  ExpressionPtr test;
  Target target;
  bool recursive = false;
  std::vector<std::pair<ExpressionPtr, Block>> branches;
  std::vector<std::pair<Target, ExpressionPtr>> bindings;
  std::vector<Parameter> parameters;
  bool takes_rest = false;        // kMacro, kCallBlock: the body says `varargs`
  bool takes_rest_named = false;  // ... `kwargs`
  bool takes_caller = false;      // ... `caller`
  Block body;
  Block otherwise;
};

// Parses a template; an Error names construct and line.
Block parse_template(std::string_view source);

}  // namespace strata::text
