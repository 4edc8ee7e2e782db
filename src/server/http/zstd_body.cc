// SPDX-License-Identifier: Apache-2.0
#include "server/http/zstd_body.h"

#include <zstd.h>

#include <algorithm>
#include <new>

#include "server/http/message.h"

namespace strata::server {
namespace {

// 16 MiB: twice what RFC 8878 asks decoders to support; the declared window is allocated.
constexpr int kMaxWindowLog = 24;
constexpr size_t kChunk = 64 << 10;
constexpr size_t kStep = 128 << 10;
// The header of a frame is at most so long. Its bytes are handed on one by one: libzstd checks more
// of a frame that it gets in one piece, and a body's fate must not depend on how it was cut.
constexpr size_t kMaxHeader = 18;

// Frames begin with 0xFD2FB528, skippable ones with 0x184D2A5?, both little-endian (RFC 8878, 3.1).
// libzstd may also know the formats from before the RFC, which nobody sends.
constexpr uint32_t kMagic = 0xFD2FB528;
constexpr uint32_t kSkippable = 0x184D2A50;

}  // namespace

struct ZstdBody::Context {
  ZSTD_DCtx* zstd = ZSTD_createDCtx();
  Context() {
    if (zstd == nullptr) throw std::bad_alloc();
    ZSTD_DCtx_setParameter(zstd, ZSTD_d_windowLogMax, kMaxWindowLog);
  }
  ~Context() { ZSTD_freeDCtx(zstd); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
};

ZstdBody::ZstdBody(uint64_t max_bytes)
    : context_(std::make_unique<Context>()), max_bytes_(max_bytes) {}
ZstdBody::~ZstdBody() = default;

uint64_t ZstdBody::memory() const { return ZSTD_sizeof_DCtx(context_->zstd); }

bool ZstdBody::matches_magic(char byte) {
  if (num_header_ >= 4) return true;
  const uint32_t got = static_cast<uint8_t>(byte);
  if (num_header_ == 0) magic_ = got == (kMagic & 0xFF) ? kMagic : kSkippable | (got & 0x0F);
  return got == (magic_ >> (8 * num_header_) & 0xFF);
}

size_t ZstdBody::end_of_next_input(size_t begin, size_t size) const {
  return num_header_ < kMaxHeader ? std::min(begin + 1, size) : size;
}

void ZstdBody::note_consumed(size_t count, bool ends_frame) {
  complete_ = ends_frame;
  num_header_ = complete_ ? 0 : std::min(num_header_ + count, kMaxHeader);
}

ZstdBody::Progress ZstdBody::feed(std::string_view& bytes, std::string& out) {
  if (bytes.empty() && !more_) return Progress::kOk;
  more_ = false;
  ZSTD_inBuffer in = {bytes.data(), 0, 0};
  char chunk[kChunk];
  for (size_t made = 0; made < kStep;) {
    ZSTD_outBuffer piece = {chunk, kChunk, 0};
    const size_t consumed = in.pos;
    if (in.pos < bytes.size() && !matches_magic(bytes[in.pos])) return Progress::kCorrupt;
    in.size = end_of_next_input(in.pos, bytes.size());
    const size_t left = ZSTD_decompressStream(context_->zstd, &piece, &in);
    if (ZSTD_isError(left) != 0) return Progress::kCorrupt;
    if (out.size() + piece.pos > max_bytes_) return Progress::kTooLarge;
    append_with_capped_capacity(out, {chunk, piece.pos}, max_bytes_);
    made += piece.pos;
    note_consumed(in.pos - consumed, /*ends_frame=*/left == 0);
    const bool read_all = in.pos == bytes.size() && (complete_ || piece.pos < piece.size);
    if (read_all || (in.pos == consumed && piece.pos == 0)) {
      bytes = {};
      return Progress::kOk;
    }
  }
  bytes.remove_prefix(in.pos);
  more_ = true;
  return Progress::kMore;
}

}  // namespace strata::server
