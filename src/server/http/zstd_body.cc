#include "server/http/zstd_body.h"

#include <zstd.h>

#include <new>

namespace strata::server {
namespace {

// 16 MiB: twice what RFC 8878 asks decoders to support; the declared window is allocated.
constexpr int kMaxWindowLog = 24;
constexpr size_t kChunk = 64 << 10;

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

ZstdBody::Progress ZstdBody::feed(std::string_view bytes, std::string& out) {
  if (bytes.empty()) return Progress::kOk;
  ZSTD_inBuffer in = {bytes.data(), bytes.size(), 0};
  char chunk[kChunk];
  for (;;) {
    ZSTD_outBuffer piece = {chunk, kChunk, 0};
    const size_t consumed = in.pos;
    const size_t left = ZSTD_decompressStream(context_->zstd, &piece, &in);
    if (ZSTD_isError(left) != 0) return Progress::kCorrupt;
    if (out.size() + piece.pos > max_bytes_) return Progress::kTooLarge;
    out.append(chunk, piece.pos);
    complete_ = left == 0;
    if (in.pos == in.size && (complete_ || piece.pos < piece.size)) return Progress::kOk;
    if (in.pos == consumed && piece.pos == 0) return Progress::kOk;
  }
}

}  // namespace strata::server
