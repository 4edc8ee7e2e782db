// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/added_tokens.h"

#include <algorithm>

#include "text/unicode/unicode.h"

namespace strata::text {
namespace {

bool is_word(uint32_t c) {
  // Rust's \w also has the two joiners.
  static const CodePointSet words(unite(word_ranges(), {{0x200C, 0x200D}}));
  return words.contains(c);
}

bool is_space(uint32_t c) {
  static const CodePointSet spaces(space_ranges());
  return spaces.contains(c);
}

bool word_at(std::string_view text, size_t pos) {
  return pos < text.size() && is_word(next_code_point(text, pos));
}

bool word_before(std::string_view text, size_t pos) {
  if (pos == 0) return false;
  size_t start = previous_start(text, pos);
  return is_word(next_code_point(text, start));
}

// Where the spaces begin that end at `end`, `begin` at the earliest.
size_t start_of_spaces(std::string_view text, size_t begin, size_t end) {
  while (end > begin) {
    const size_t before = previous_start(text, end);
    size_t next = before;
    if (!is_space(next_code_point(text, next))) break;
    end = before;
  }
  return end;
}

size_t end_of_spaces(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    size_t next = begin;
    if (!is_space(next_code_point(text, next))) break;
    begin = next;
  }
  return begin;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens,
                                   std::vector<std::string> contents)
    : tokens_(std::move(tokens)), contents_(std::move(contents)), nodes_(1) {
  for (size_t t = 0; t < contents_.size(); ++t)
    if (!contents_[t].empty()) add_to_trie(t);
}

void AddedTokenFinder::add_to_trie(size_t token) {
  uint32_t node = 0;
  for (const char c : contents_[token]) {
    const auto byte = static_cast<uint8_t>(c);
    const uint32_t next = child(node, byte);
    node = next == 0 ? add_child(node, byte) : next;
  }
  // Where two have the same text the first counts.
  if (nodes_[node].token < 0) nodes_[node].token = static_cast<int32_t>(token);
}

uint32_t AddedTokenFinder::add_child(uint32_t node, uint8_t byte) {
  const auto added = static_cast<uint32_t>(nodes_.size());
  nodes_.emplace_back();
  auto& children = nodes_[node].children;
  const std::pair<uint8_t, uint32_t> entry{byte, added};
  children.insert(std::lower_bound(children.begin(), children.end(), entry), entry);
  if (node == 0) first_[byte] = added;
  return added;
}

uint32_t AddedTokenFinder::child(uint32_t node, uint8_t byte) const {
  if (node == 0) return first_[byte];
  const auto& children = nodes_[node].children;
  const auto found =
      std::lower_bound(children.begin(), children.end(), std::pair<uint8_t, uint32_t>{byte, 0});
  return found != children.end() && found->first == byte ? found->second : 0;
}

bool AddedTokenFinder::find_longest_at(std::string_view text, size_t pos, size_t& token) const {
  bool found = false;
  uint32_t node = 0;
  for (size_t i = pos; i < text.size(); ++i) {
    node = child(node, static_cast<uint8_t>(text[i]));
    if (node == 0) break;
    if (nodes_[node].token < 0) continue;
    token = static_cast<size_t>(nodes_[node].token);
    found = true;
  }
  return found;
}

bool AddedTokenFinder::split_while(std::string_view text, FunctionRef<bool(Segment)> take) const {
  size_t done = 0;
  for (size_t pos = 0; pos < text.size();) {
    size_t t = 0;
    if (first_[static_cast<uint8_t>(text[pos])] == 0 || !find_longest_at(text, pos, t)) {
      ++pos;
      continue;
    }
    size_t begin = pos;
    size_t end = pos + contents_[t].size();
    pos = end;
    const AddedToken& token = tokens_[t];
    if (token.single_word && (word_before(text, begin) || word_at(text, end))) continue;
    if (token.lstrip) begin = start_of_spaces(text, done, begin);
    if (token.rstrip) end = end_of_spaces(text, end);
    if (done < begin && !take({-1, done, begin})) return false;
    if (!take({token.id, begin, end})) return false;
    done = end;
  }
  return done == text.size() || take({-1, done, text.size()});
}

}  // namespace strata::text
