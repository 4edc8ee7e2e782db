// SPDX-License-Identifier: Apache-2.0
// A zstd body in pieces: it ends, is refused, or asks for more; it never yields more than its limit
// and not a byte after a fault; and the pieces it comes in change nothing.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "server/http/zstd_body.h"

namespace {

using strata::server::ZstdBody;

constexpr uint64_t kLimit = 1 << 16;

void require(bool condition) {
  if (!condition) std::abort();
}

struct Outcome {
  ZstdBody::Progress progress = ZstdBody::Progress::kOk;
  bool complete = false;
  std::string text;
};

Outcome decode(std::string_view bytes, size_t piece) {
  Outcome out;
  ZstdBody body(kLimit);
  while (!bytes.empty() && out.progress == ZstdBody::Progress::kOk) {
    std::string_view part = bytes.substr(0, piece);
    do {
      out.progress = body.feed(part, out.text);
    } while (out.progress == ZstdBody::Progress::kMore);
    require(out.text.size() <= kLimit);
    bytes.remove_prefix(std::min(piece, bytes.size()));
  }
  out.complete = body.complete();
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const Outcome whole = decode(bytes, bytes.size());
  const Outcome pieces = decode(bytes, 1 + size % 7);
  // Of two faults the pieces may meet the other one first.
  require((whole.progress == ZstdBody::Progress::kOk) ==
          (pieces.progress == ZstdBody::Progress::kOk));
  if (whole.progress == ZstdBody::Progress::kOk) {
    require(whole.complete == pieces.complete && whole.text == pieces.text);
  }
  return 0;
}
