// SPDX-License-Identifier: Apache-2.0
// A file, or a part of one, in pieces: what that takes does not depend on its size.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/files.h"

namespace strata {

// Hands over [begin, begin + size), a MiB at most at a time.
template <typename Take>
void read_pieces(const ReadOnlyFile& file, int64_t begin, int64_t size, const Take& take) {
  constexpr int64_t kPiece = 1 << 20;
  std::string buffer;
  for (int64_t done = 0; done < size; done += static_cast<int64_t>(buffer.size())) {
    buffer.resize(static_cast<size_t>(std::min(kPiece, size - done)));
    file.read_at(begin + done, std::as_writable_bytes(std::span(buffer)));
    take(std::string_view(buffer));
  }
}

}  // namespace strata
