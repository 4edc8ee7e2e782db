// SPDX-License-Identifier: Apache-2.0
// Finds added tokens in text: leftmost first, the longest among those that begin there, with the
// flags single_word, lstrip and rstrip, as Hugging Face's AddedVocabulary does. Immutable.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "text/tokenizer/spec.h"

namespace strata::text {

class AddedTokenFinder {
 public:
  // `contents[i]` is what to look for in place of tokens[i].content (it may have been normalized).
  AddedTokenFinder(std::vector<AddedToken> tokens, std::vector<std::string> contents);

  struct Segment {
    int32_t id = -1;  // -1: text between added tokens
    size_t begin = 0;
    size_t end = 0;
  };
  // Gives the segments of `text` in order, as they are found, until `take` is false, which it then
  // is too; text between tokens only where there is some.
  bool split_while(std::string_view text, FunctionRef<bool(Segment)> take) const;

 private:
  // The node reached from `node` by `byte`, or 0: node 0 is the root and no node's child.
  [[nodiscard]] uint32_t child(uint32_t node, uint8_t byte) const;
  void add_to_trie(size_t token);
  uint32_t add_child(uint32_t node, uint8_t byte);
  [[nodiscard]] bool find_longest_at(std::string_view text, size_t pos, size_t& token) const;

  struct Node {
    std::vector<std::pair<uint8_t, uint32_t>> children;  // sorted by byte
    int32_t token = -1;
  };
  std::vector<AddedToken> tokens_;
  std::vector<std::string> contents_;
  std::vector<Node> nodes_;
  uint32_t first_[256] = {};  // children of the root
};

}  // namespace strata::text
