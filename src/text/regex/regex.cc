// SPDX-License-Identifier: Apache-2.0
#include "text/regex/regex.h"

#include "base/error.h"
#include "text/regex/tree.h"

namespace strata::text {
namespace {

constexpr size_t kNoMatch = static_cast<size_t>(-1);

// One place to go back to: `pc` at `pos`; a repeat may come back until `pos` reaches `limit`.
struct Frame {
  uint32_t pc;
  bool lazy;
  size_t pos;
  size_t limit;
};

class Matcher {
 public:
  Matcher(const Regex::Program& program, std::string_view text, int64_t steps_left)
      : program_(program), text_(text), steps_left_(steps_left) {}

  // The end of the match of the program at `pc` that begins at `pos`, or kNoMatch.
  size_t match_end(uint32_t pc, size_t pos);
  int64_t& steps_left() { return steps_left_; }  // below 0: they were too few

 private:
  bool run_instruction(uint32_t& pc, size_t& pos);
  bool backtrack(size_t base, uint32_t& pc, size_t& pos);
  bool extend_lazy(Frame& frame, uint32_t& pc, size_t& pos);
  void go_back(Frame& frame, uint32_t& pc, size_t& pos);
  bool match_repeat(const Regex::Instruction& in, uint32_t pc, size_t& pos);
  bool match_one(const Regex::Set& set, size_t& pos) const;
  [[nodiscard]] bool holds(Regex::Assertion assertion, size_t pos) const;
  [[nodiscard]] bool is_word(size_t pos) const;

  const Regex::Program& program_;
  std::string_view text_;
  int64_t steps_left_;
  std::vector<Frame> frames_;
};

bool Matcher::match_one(const Regex::Set& set, size_t& pos) const {
  if (pos >= text_.size()) return false;
  size_t next = pos;
  if (!set.contains(next_code_point(text_, next))) return false;
  pos = next;
  return true;
}

bool Matcher::is_word(size_t pos) const {
  static const CodePointSet words(word_ranges());
  return words.contains(next_code_point(text_, pos));
}

bool Matcher::holds(Regex::Assertion assertion, size_t pos) const {
  const size_t size = text_.size();
  switch (assertion) {
    case Regex::Assertion::kBegin:
      return pos == 0;
    case Regex::Assertion::kEnd:
      return pos == size;
    case Regex::Assertion::kEndOrNewline:
      return pos == size || (pos + 1 == size && text_[pos] == '\n');
    case Regex::Assertion::kLineBegin:
      return pos == 0 || (text_[pos - 1] == '\n' && pos < size);
    case Regex::Assertion::kLineEnd:
      return pos == size || text_[pos] == '\n';
    case Regex::Assertion::kWord:
      return (pos > 0 && is_word(previous_start(text_, pos))) != (pos < size && is_word(pos));
  }
  return false;
}

bool Matcher::match_repeat(const Regex::Instruction& in, uint32_t pc, size_t& pos) {
  const Regex::Set& set = program_.sets[in.arg];
  uint32_t count = 0;
  size_t minimum = pos;
  const uint32_t wanted = in.op == Regex::Op::kLazy ? in.min : in.max;
  while (count < wanted && match_one(set, pos)) {
    if (++count == in.min) minimum = pos;
  }
  steps_left_ -= count;
  if (count < in.min) return false;
  // Nothing follows but the match: there is no reason to come back.
  const bool last = program_.code[pc + 1].op == Regex::Op::kMatch;
  if (in.op == Regex::Op::kGreedy && !last && pos > minimum)
    frames_.push_back({pc + 1, false, pos, minimum});
  if (in.op == Regex::Op::kLazy && in.max > in.min)
    frames_.push_back({pc, true, pos, in.max - in.min});
  return true;
}

// Takes the newest frame above `base`; false when there is none.
bool Matcher::backtrack(size_t base, uint32_t& pc, size_t& pos) {
  while (frames_.size() > base) {
    Frame& frame = frames_.back();
    --steps_left_;
    if (frame.lazy) {
      if (extend_lazy(frame, pc, pos)) return true;
      continue;
    }
    go_back(frame, pc, pos);
    return true;
  }
  return false;
}

// One more of a lazy repeat; false, and its frame goes, when there is none.
bool Matcher::extend_lazy(Frame& frame, uint32_t& pc, size_t& pos) {
  const Regex::Instruction& in = program_.code[frame.pc];
  pc = frame.pc + 1;
  if (!match_one(program_.sets[in.arg], frame.pos)) {
    frames_.pop_back();
    return false;
  }
  pos = frame.pos;
  if (--frame.limit == 0) frames_.pop_back();
  return true;
}

// To the other branch of a split, or to one less of a greedy repeat.
void Matcher::go_back(Frame& frame, uint32_t& pc, size_t& pos) {
  pc = frame.pc;
  if (frame.limit == kNoMatch) {
    pos = frame.pos;
    frames_.pop_back();
    return;
  }
  pos = frame.pos = previous_start(text_, frame.pos);
  if (pos <= frame.limit) frames_.pop_back();
}

// Runs one instruction; false when it fails.
bool Matcher::run_instruction(uint32_t& pc, size_t& pos) {
  const Regex::Instruction& in = program_.code[pc];
  switch (in.op) {
    case Regex::Op::kSet:
      if (!match_one(program_.sets[in.arg], pos)) return false;
      break;
    case Regex::Op::kGreedy:
    case Regex::Op::kLazy:
    case Regex::Op::kPossessive:
      if (!match_repeat(in, pc, pos)) return false;
      break;
    case Regex::Op::kSplit:
      if (frames_.size() > Regex::kMaxFrames) steps_left_ = 0;
      frames_.push_back({in.other, false, pos, kNoMatch});
      pc = in.arg;
      return true;
    case Regex::Op::kJump:
      pc = in.arg;
      return true;
    case Regex::Op::kLook:
      if ((match_end(pc + 1, pos) != kNoMatch) == in.negate) return false;
      pc = in.arg;
      return true;
    case Regex::Op::kAtomic: {
      const size_t end = match_end(pc + 1, pos);
      if (end == kNoMatch) return false;
      pos = end;
      pc = in.arg;
      return true;
    }
    case Regex::Op::kBehind: {
      size_t before = pos > 0 ? previous_start(text_, pos) : 0;
      if ((pos > 0 && match_one(program_.sets[in.arg], before)) == in.negate) return false;
      break;
    }
    case Regex::Op::kAssert:
      if (holds(static_cast<Regex::Assertion>(in.arg), pos) == in.negate) return false;
      break;
    case Regex::Op::kMatch:
      break;
  }
  ++pc;
  return true;
}

size_t Matcher::match_end(uint32_t pc, size_t pos) {
  const size_t base = frames_.size();
  while (program_.code[pc].op != Regex::Op::kMatch) {
    if (--steps_left_ < 0) break;
    if (run_instruction(pc, pos)) continue;
    if (!backtrack(base, pc, pos)) return kNoMatch;
  }
  frames_.resize(base);
  return steps_left_ < 0 ? kNoMatch : pos;
}

}  // namespace

Regex::Set::Set(const Ranges& ranges) {
  bool is_ascii = true;
  for (const auto& [first, last] : ranges) {
    for (uint32_t c = first; c <= std::min<uint32_t>(last, 127); ++c)
      ascii[c >> 6] |= uint64_t{1} << (c & 63);
    is_ascii = is_ascii && last < 128;
  }
  if (!is_ascii) all = CodePointSet(ranges);
}

int64_t Regex::num_bytes() const {
  auto bytes = static_cast<int64_t>(program_.code.size() * sizeof(Instruction));
  for (const Set& set : program_.sets) bytes += int64_t{sizeof(Set)} + set.all.num_bytes();
  return bytes;
}

Regex::Regex(std::string_view pattern, const std::string& where, Syntax syntax)
    : Regex(compile_regex_tree(parse_regex(pattern, where, syntax), where), where) {}

Regex Regex::literal(std::string_view text, const std::string& where) {
  check_pattern_size(text, where);
  RegexNode all;
  for (size_t pos = 0; pos < text.size();) {
    const uint32_t c = next_code_point(text, pos);
    all.children.push_back({.kind = RegexNode::Kind::kSet, .set = {{c, c}}});
  }
  return {compile_regex_tree(all, where), where};
}

bool Regex::matches_start(std::string_view text, int64_t& steps_left) const {
  Matcher matcher(program_, text, steps_left);
  const bool found = matcher.match_end(0, 0) != kNoMatch;
  steps_left = matcher.steps_left();
  return found;
}

void Regex::throw_too_many_steps(size_t bytes) const {
  throw Error(ErrorCode::kResourceExhausted,
              where_ + ": the pattern needs more than " + std::to_string(kStepsPerByte) +
                  " steps a byte on a text of " + std::to_string(bytes) +
                  " bytes, or too much memory; a pattern with nested repeats?");
}

bool Regex::find_while(std::string_view text, FunctionRef<bool(size_t, size_t)> found,
                       int64_t& steps_left) const {
  Matcher matcher(program_, text, steps_left);
  size_t last_end = kNoMatch;
  for (size_t pos = 0; pos < text.size();) {
    const size_t end = matcher.match_end(0, pos);
    steps_left = matcher.steps_left();
    if (steps_left < 0) throw_too_many_steps(text.size());
    if (end != kNoMatch && (end > pos || pos != last_end) && !found(pos, end)) return false;
    matcher.steps_left() = steps_left;  // others may have looked meanwhile
    if (end != kNoMatch && end > pos) {
      pos = last_end = end;
    } else {
      next_code_point(text, pos);
    }
  }
  return true;
}

}  // namespace strata::text
