// SPDX-License-Identifier: Apache-2.0
#include "backend/mpi_operation.h"

#include <algorithm>
#include <utility>

namespace strata {
namespace {

// Buffers of messages longer than this are others' in turn, so that they take what is on its way
// at once; of shorter ones each is as good.
constexpr int64_t kShortMessage = 64 << 10;

// Whether its buffer holds so many bytes, and is not far too large.
bool fits(const MpiOperation& one, int64_t bytes) {
  const size_t size = one.own.capacity();
  return std::cmp_greater_equal(size, bytes) &&
         std::cmp_less_equal(size, 2 * std::max(bytes, kShortMessage));
}

bool is_better_buffer(const MpiOperation& one, const MpiOperation& other, int64_t bytes) {
  const bool is_right = fits(one, bytes);
  if (is_right != fits(other, bytes)) return is_right;
  const size_t size = one.own.capacity(), other_size = other.own.capacity();
  return is_right ? size < other_size : size > other_size;
}

}  // namespace

void copy_to_buffer(const void* data, int64_t bytes, MpiOperation& operation) {
  const auto* first = static_cast<const std::byte*>(data);
  if (!fits(operation, bytes)) {
    std::vector<std::byte>().swap(operation.own);  // the old one first, and to the byte
    operation.own.reserve(static_cast<size_t>(bytes));
  }
  operation.own.assign(first, first + bytes);
}

MpiOperation& SendPool::claim(int64_t bytes) {
  MpiOperations& operations = bytes > kShortMessage ? long_ : short_;
  MpiOperation* best = nullptr;
  for (const auto& operation : operations) {
    if (operation->busy) continue;
    if (best == nullptr || is_better_buffer(*operation, *best, bytes)) best = operation.get();
  }
  if (best == nullptr) best = operations.emplace_back(std::make_unique<MpiOperation>()).get();
  best->busy = true;
  return *best;
}

}  // namespace strata
