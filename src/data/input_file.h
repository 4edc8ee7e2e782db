// SPDX-License-Identifier: Apache-2.0
// InputFile: a file of data as plain bytes, whatever holds them: a regular file, one that is
// compressed (by its first bytes: gzip, zstd), stdin ("-") or another pipe. All but the first are
// unpacked to a temporary file, so that they can be read more than once. Any thread may read.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/files.h"
#include "base/function_ref.h"
#include "data/temporary_file.h"

namespace strata::data {

enum class Packing : uint8_t { kNone, kGzip, kZstd };

// Where packed bytes come from: up to so many, 0 at the end.
using PackedBytes = FunctionRef<size_t(std::span<char>)>;

class InputFile {
 public:
  // Throws Error that names the path: no such file, or compressed bytes that are not whole.
  explicit InputFile(const std::string& path);

  [[nodiscard]] const std::string& path() const { return path_; }  // "-" of stdin
  [[nodiscard]] std::string shown() const { return path_ == "-" ? "stdin" : path_; }
  [[nodiscard]] Packing packing() const { return packing_; }
  [[nodiscard]] int64_t size() const;  // unpacked
  // Reads what there is from `offset` on, at most as much as `out` takes; returns how much.
  [[nodiscard]] size_t read_some(int64_t offset, std::span<char> out) const;
  // Calls with all of it, piece by piece.
  void for_each_piece(FunctionRef<void(std::string_view)> use) const;

 private:
  // `begin`: what was read of it already.
  void unpack_stream(std::string begin, PackedBytes read_rest);

  std::string path_;
  Packing packing_ = Packing::kNone;
  std::optional<ReadOnlyFile> plain_;
  std::unique_ptr<TemporaryFile> unpacked_;
};

// FNV-1a of its bytes, as base/rng.h's hash_name.
uint64_t hash_content(const InputFile& file);

// What these bytes begin: gzip, zstd or neither.
Packing packing_of(std::string_view first_bytes);

// Throws Error where they are not whole, which says what is wrong and not where.
void unpack(Packing packing, PackedBytes read, FunctionRef<void(std::span<const std::byte>)> take);

}  // namespace strata::data
