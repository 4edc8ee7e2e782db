// SPDX-License-Identifier: Apache-2.0
// Lists of the host (segments, ranges, rows, items of work) that an op hands to its kind's
// function. Where ops run before they return, a list stays where it is. A kind whose ops run later
// keeps a copy (StageRow), for as long as the work that was asked for behind it may read it, so
// that whoever called the op may change or free the list at once. Each op stages its lists, and
// those inside their elements, after its checks; no function of a kind meets one that is not. What
// an op writes for the host is never staged: such an op returns when it is there.
#pragma once
#include <span>
#include <type_traits>

#include "backend/backend.h"
#include "ops/rows.h"

namespace strata::ops {

template <typename T>
std::span<const T> stage_list(Backend& backend, std::span<const T> list) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (list.empty()) return list;
  const void* staged =
      backend.rows().stage.list(backend, list.data(), static_cast<int64_t>(list.size_bytes()));
  return {static_cast<const T*>(staged), list.size()};
}

// The same where elements have lists too: inside(element) stages those of a copy.
template <typename T, typename Inside>
std::span<const T> stage_list(Backend& backend, std::span<const T> list, Inside inside) {
  const std::span<const T> staged = stage_list(backend, list);
  if (staged.data() == list.data()) return list;
  T* own = const_cast<T*>(staged.data());
  for (size_t i = 0; i < staged.size(); ++i) inside(own[i]);
  return staged;
}

// Arguments of an op, with their list of segments staged.
template <typename Args>
Args with_staged_segments(Backend& backend, Args args) {
  args.segments = stage_list(backend, args.segments);
  return args;
}
template <typename Args, typename Inside>
Args with_staged_segments(Backend& backend, Args args, Inside inside) {
  args.segments = stage_list(backend, args.segments, inside);
  return args;
}
template <typename Args>
Args with_staged_positions(Backend& backend, Args args) {
  args.positions = stage_list(backend, args.positions);
  return args;
}

}  // namespace strata::ops
