// SPDX-License-Identifier: Apache-2.0
// Tree -> Regex::Program.
#include <algorithm>

#include "base/error.h"
#include "text/regex/tree.h"

namespace strata::text {
namespace {

using Node = RegexNode;

class Compiler {
 public:
  explicit Compiler(const std::string& where) : where_(where) {}

  Regex::Program compile(const Node& node) {
    emit(node);
    add_instruction({.op = Regex::Op::kMatch});
    return std::move(program_);
  }

 private:
  uint32_t add_instruction(Regex::Instruction instruction) {
    if (program_.code.size() >= Regex::kMaxProgram)
      throw Error(ErrorCode::kResourceExhausted, where_ + ": the pattern needs more than " +
                                                     std::to_string(Regex::kMaxProgram) +
                                                     " instructions; repeats inside repeats?");
    program_.code.push_back(instruction);
    return static_cast<uint32_t>(program_.code.size() - 1);
  }
  [[nodiscard]] uint32_t here() const { return static_cast<uint32_t>(program_.code.size()); }

  uint32_t ensure_set(const Ranges& ranges) {
    const auto known = std::find(set_ranges_.begin(), set_ranges_.end(), ranges);
    if (known != set_ranges_.end()) return static_cast<uint32_t>(known - set_ranges_.begin());
    program_.sets.emplace_back(ranges);
    set_ranges_.push_back(ranges);
    return static_cast<uint32_t>(program_.sets.size() - 1);
  }

  void emit(const Node& node);
  void emit_alternate(const Node& node);
  void emit_repeat(const Node& node);
  void emit_repetitions(const Node& inner, const Node& repeat);
  void emit_enclosed(const Node& node, Regex::Op op);

  const std::string& where_;
  Regex::Program program_;
  std::vector<Ranges> set_ranges_;
};

void Compiler::emit(const Node& node) {
  switch (node.kind) {
    case Node::Kind::kSet:
      add_instruction({.op = Regex::Op::kSet, .arg = ensure_set(node.set)});
      break;
    case Node::Kind::kConcat:
      for (const Node& child : node.children) emit(child);
      break;
    case Node::Kind::kAlternate:
      emit_alternate(node);
      break;
    case Node::Kind::kRepeat:
      emit_repeat(node);
      break;
    case Node::Kind::kAhead:
      emit_enclosed(node, Regex::Op::kLook);
      break;
    case Node::Kind::kAtomic:
      emit_enclosed(node, Regex::Op::kAtomic);
      break;
    case Node::Kind::kBehind:
      add_instruction(
          {.op = Regex::Op::kBehind, .negate = node.negate, .arg = ensure_set(node.set)});
      break;
    case Node::Kind::kAssert:
      add_instruction({.op = Regex::Op::kAssert,
                       .negate = node.negate,
                       .arg = static_cast<uint32_t>(node.assertion)});
      break;
  }
}

void Compiler::emit_alternate(const Node& node) {
  std::vector<uint32_t> jumps;
  for (size_t i = 0; i < node.children.size(); ++i) {
    const bool last = i + 1 == node.children.size();
    uint32_t split = 0;
    if (!last) {
      split = add_instruction({.op = Regex::Op::kSplit});
      program_.code[split].arg = here();
    }
    emit(node.children[i]);
    if (last) break;
    jumps.push_back(add_instruction({.op = Regex::Op::kJump}));
    program_.code[split].other = here();
  }
  for (const uint32_t jump : jumps) program_.code[jump].arg = here();
}

void Compiler::emit_enclosed(const Node& node, Regex::Op op) {
  const uint32_t begin = add_instruction({.op = op, .negate = node.negate});
  for (const Node& child : node.children) emit(child);
  add_instruction({.op = Regex::Op::kMatch});
  program_.code[begin].arg = here();
}

void Compiler::emit_repeat(const Node& node) {
  const Node* inner = &unwrapped(node.children[0]);
  if (inner->kind == Node::Kind::kSet) {
    const Regex::Op op = node.greed == Greed::kGreedy ? Regex::Op::kGreedy
                         : node.greed == Greed::kLazy ? Regex::Op::kLazy
                                                      : Regex::Op::kPossessive;
    add_instruction({.op = op, .arg = ensure_set(inner->set), .min = node.min, .max = node.max});
    return;
  }
  uint32_t atomic = 0;
  if (node.greed == Greed::kPossessive) atomic = add_instruction({.op = Regex::Op::kAtomic});
  emit_repetitions(*inner, node);
  if (node.greed == Greed::kPossessive) {
    add_instruction({.op = Regex::Op::kMatch});
    program_.code[atomic].arg = here();
  }
}

// As many copies of what is repeated as it must match, and the loop or the copies that it may.
void Compiler::emit_repetitions(const Node& inner, const Node& repeat) {
  const auto split = [&] {
    const uint32_t at = add_instruction({.op = Regex::Op::kSplit});
    program_.code[at].arg = at + 1;
    return at;
  };
  const auto leave = [&](uint32_t at) {
    program_.code[at].other = here();
    if (repeat.greed == Greed::kLazy) std::swap(program_.code[at].arg, program_.code[at].other);
  };
  for (uint32_t i = 0; i < repeat.min; ++i) emit(inner);
  if (repeat.max == kUnbounded) {
    const uint32_t at = split();
    emit(inner);
    add_instruction({.op = Regex::Op::kJump, .arg = at});
    leave(at);
  } else {
    std::vector<uint32_t> splits;
    for (uint32_t i = repeat.min; i < repeat.max; ++i) {
      splits.push_back(split());
      emit(inner);
    }
    for (const uint32_t at : splits) leave(at);
  }
}

}  // namespace

Regex::Program compile_regex_tree(const RegexNode& node, const std::string& where) {
  return Compiler(where).compile(node);
}

}  // namespace strata::text
