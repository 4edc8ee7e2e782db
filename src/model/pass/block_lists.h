// SPDX-License-Identifier: Apache-2.0
// BlockLists: lists that blocks build anew for each sublayer, kept from pass to pass, so that a
// warm step allocates nothing. There is one object of each type, which is a block's own, or shared
// by blocks that agree on it: pass.lists.blocks.ensure_lists<KvLists>(). Engine thread only.
#pragma once
#include <cstddef>
#include <memory>
#include <vector>

namespace strata::model {

class BlockLists {
 public:
  // Made at the first call; the next block that asks for this type finds what this one left.
  template <typename T>
  [[nodiscard]] T& ensure_lists() {
    static const size_t place = next_place();
    if (place >= slots_.size()) slots_.resize(place + 1);
    if (slots_[place] == nullptr) slots_[place] = std::make_unique<Held<T>>();
    return static_cast<Held<T>&>(*slots_[place]).lists;
  }

 private:
  struct Holder {
    virtual ~Holder() = default;
  };
  template <typename T>
  struct Held : Holder {
    T lists;
  };
  static size_t next_place();  // any thread

  std::vector<std::unique_ptr<Holder>> slots_;
};

}  // namespace strata::model
