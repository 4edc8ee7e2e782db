#include "server/http/zstd_body.h"

#include <zstd.h>

#include <new>

namespace strata::server {
namespace {

// 16 MiB: twice what RFC 8878 asks decoders to support; the declared window is allocated.
constexpr int kMaxWindowLog = 24;
constexpr size_t kChunk = 64 << 10;

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

bool ZstdBody::read_magic(std::string_view bytes) {
  for (const char byte : bytes.substr(0, 4 - num_magic_)) {
    const uint32_t got = static_cast<uint8_t>(byte);
    const int shift = 8 * static_cast<int>(num_magic_);
    if (num_magic_ == 0) magic_ = got == (kMagic & 0xFF) ? kMagic : kSkippable | (got & 0x0F);
    if (got != (magic_ >> shift & 0xFF)) return false;
    ++num_magic_;
  }
  return true;
}

ZstdBody::Progress ZstdBody::feed(std::string_view bytes, std::string& out) {
  if (bytes.empty()) return Progress::kOk;
  ZSTD_inBuffer in = {bytes.data(), bytes.size(), 0};
  char chunk[kChunk];
  for (;;) {
    ZSTD_outBuffer piece = {chunk, kChunk, 0};
    const size_t consumed = in.pos;
    if (!read_magic(bytes.substr(in.pos))) return Progress::kCorrupt;
    const size_t left = ZSTD_decompressStream(context_->zstd, &piece, &in);
    if (ZSTD_isError(left) != 0) return Progress::kCorrupt;
    if (out.size() + piece.pos > max_bytes_) return Progress::kTooLarge;
    out.append(chunk, piece.pos);
    complete_ = left == 0;
    if (complete_) num_magic_ = 0;
    if (in.pos == in.size && (complete_ || piece.pos < piece.size)) return Progress::kOk;
    if (in.pos == consumed && piece.pos == 0) return Progress::kOk;
  }
}

}  // namespace strata::server
