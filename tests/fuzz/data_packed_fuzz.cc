// SPDX-License-Identifier: Apache-2.0
// Packed bytes: gzip or zstd by the first one. What comes out is not kept, and ends at 16 MiB.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "data/input_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using strata::data::Packing;
  if (size == 0) return 0;
  size_t at = 1, unpacked = 0;
  const auto read = [&](std::span<char> out) {
    const size_t count = std::min({size - at, out.size(), size_t{1000}});  // in pieces
    std::memcpy(out.data(), bytes + at, count);
    at += count;
    return count;
  };
  const auto take = [&](std::span<const std::byte> piece) {
    unpacked += piece.size();
    if (unpacked > size_t{16} << 20)
      throw strata::Error(strata::ErrorCode::kResourceExhausted, "enough");
  };
  try {
    strata::data::unpack(bytes[0] % 2 == 0 ? Packing::kGzip : Packing::kZstd, read, take);
  } catch (const strata::Error&) {
  }
  return 0;
}
