// SPDX-License-Identifier: Apache-2.0
// unpack() of data/input_file.h: gzip members and zstd frames, one behind the other.
#include <fmt/format.h>
#include <zlib.h>
#include <zstd.h>

#include <memory>
#include <vector>

#include "base/error.h"
#include "data/input_file.h"

namespace strata::data {
namespace {

constexpr size_t kPiece = 256 << 10;
constexpr int kGzipWindow = 15 + 16;  // the largest, with gzip's header alone

[[noreturn]] void fail(const std::string& what) { throw Error(ErrorCode::kInvalidArgument, what); }

using Take = FunctionRef<void(std::span<const std::byte>)>;

void copy(PackedBytes read, Take take) {
  std::vector<char> piece(kPiece);
  for (size_t got = 0; (got = read(piece)) > 0;) take(std::as_bytes(std::span(piece.data(), got)));
}

class Inflater {
 public:
  Inflater() {
    if (inflateInit2(&stream_, kGzipWindow) != Z_OK) fail("gzip: no memory for it");
  }
  ~Inflater() { inflateEnd(&stream_); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  void inflate_all(PackedBytes read, Take take) {
    bool in_member = true;
    for (size_t got = 0; (got = read(packed_)) > 0;) {
      stream_.next_in = reinterpret_cast<Bytef*>(packed_.data());
      stream_.avail_in = static_cast<uInt>(got);
      while (stream_.avail_in > 0) {
        if (!in_member) inflateReset(&stream_);
        in_member = !inflate_chunk(take);
      }
    }
    if (in_member) fail("gzip: the file ends in the midst of its data; is it cut off?");
  }

 private:
  // Inflates what is there into `take`; returns whether a gzip member ends there.
  bool inflate_chunk(Take take) {
    stream_.next_out = reinterpret_cast<Bytef*>(plain_.data());
    stream_.avail_out = static_cast<uInt>(plain_.size());
    const int code = inflate(&stream_, Z_NO_FLUSH);
    if (code != Z_OK && code != Z_STREAM_END) {
      fail(fmt::format("gzip: not whole: {}", stream_.msg != nullptr ? stream_.msg : "bad data"));
    }
    take(std::as_bytes(std::span(plain_.data(), plain_.size() - stream_.avail_out)));
    return code == Z_STREAM_END;
  }

  z_stream stream_ = {};
  std::vector<char> packed_ = std::vector<char>(kPiece), plain_ = std::vector<char>(kPiece);
};

void unpack_zstd(PackedBytes read, Take take) {
  const std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> context(ZSTD_createDCtx(),
                                                                   ZSTD_freeDCtx);
  if (context == nullptr) fail("zstd: no memory to unpack it");
  std::vector<char> packed(kPiece), plain(kPiece);
  size_t left = 1;  // of the frame; 0 between frames
  for (size_t got = 0; (got = read(packed)) > 0;) {
    ZSTD_inBuffer in = {packed.data(), got, 0};
    bool is_full = false;  // then there may be more, though nothing is left to read
    while (in.pos < in.size || is_full) {
      ZSTD_outBuffer out = {plain.data(), plain.size(), 0};
      left = ZSTD_decompressStream(context.get(), &out, &in);
      if (ZSTD_isError(left) != 0) fail(fmt::format("zstd: {}", ZSTD_getErrorName(left)));
      take(std::as_bytes(std::span(plain.data(), out.pos)));
      is_full = left > 0 && out.pos == out.size;
    }
  }
  if (left != 0) fail("zstd: the file ends in the midst of its data; is it cut off?");
}

}  // namespace

Packing packing_of(std::string_view first_bytes) {
  if (first_bytes.starts_with("\x1f\x8b")) return Packing::kGzip;
  if (first_bytes.starts_with("\x28\xb5\x2f\xfd")) return Packing::kZstd;
  return Packing::kNone;
}

void unpack(Packing packing, PackedBytes read, Take take) {
  if (packing == Packing::kNone) return copy(read, take);
  if (packing == Packing::kZstd) return unpack_zstd(read, take);
  Inflater().inflate_all(read, take);
}

}  // namespace strata::data
