// SPDX-License-Identifier: Apache-2.0
// Lead: free text up to a mark, behind which a grammar begins: a thought up to </think>, or words
// before a call of a tool. How far a text is, is the number of the mark's bytes that it ends with
// (Knuth, Morris and Pratt). Tokens that hold the mark's end and more bytes are not allowed: those
// bytes would belong to the grammar. Immutable; any thread.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace strata::structured {

class Lead {
 public:
  static constexpr int kBeyond = -1;

  // `token_bytes`: what each token adds to a text.
  Lead(std::string mark, const std::vector<std::string>& token_bytes);

  // How far the text is behind one more token; kBeyond where that one is not allowed.
  [[nodiscard]] int next(int state, const std::string& bytes) const;
  [[nodiscard]] bool is_complete(int state) const {
    return state == static_cast<int>(mark_.size());
  }
  // The tokens that are not allowed in a state that is not complete.
  [[nodiscard]] std::span<const int32_t> forbidden(int state) const {
    return forbidden_[static_cast<size_t>(state)];
  }

 private:
  [[nodiscard]] int step(int state, char byte) const;

  const std::string mark_;
  std::vector<int> fallback_;  // of each state: the longest shorter one that its text ends with too
  std::vector<std::vector<int32_t>> forbidden_;  // by state
};

}  // namespace strata::structured
