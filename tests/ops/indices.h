// SPDX-License-Identifier: Apache-2.0
// Numbers that ops read or write, where a test keeps them.
#pragma once
#include <vector>

#include "tensor/index.h"

namespace strata::ops::testing {

template <typename T>
IndexView<T> indices(const std::vector<T>& numbers) {
  return {const_cast<T*>(numbers.data()), static_cast<int64_t>(numbers.size())};
}

}  // namespace strata::ops::testing
