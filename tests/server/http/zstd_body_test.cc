// SPDX-License-Identifier: Apache-2.0
#include "server/http/zstd_body.h"

#include <gtest/gtest.h>
#include <zstd.h>

namespace strata::server {
namespace {

using Progress = ZstdBody::Progress;

std::string frame(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), 0);
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

struct Outcome {
  Progress progress = Progress::kOk;
  bool complete = false;
  std::string text;
};

Outcome decode(const std::string& bytes, size_t piece) {
  ZstdBody body(1 << 16);
  Outcome out;
  for (size_t i = 0; i < bytes.size() && out.progress == Progress::kOk; i += piece) {
    std::string_view part = std::string_view(bytes).substr(i, piece);
    do {
      out.progress = body.feed(part, out.text);
    } while (out.progress == ZstdBody::Progress::kMore);
  }
  out.complete = body.complete();
  return out;
}

TEST(ZstdBody, TakesFramesOneAfterAnotherInPieces) {
  const std::string skippable("\x5A\x2A\x4D\x18\x03\x00\x00\x00xyz", 11);
  const std::string bytes = frame("{\"a\":") + skippable + frame("1}");
  for (const size_t piece : {bytes.size(), size_t{1}, size_t{3}, size_t{7}}) {
    const Outcome out = decode(bytes, piece);
    EXPECT_EQ(out.progress, Progress::kOk) << piece;
    EXPECT_TRUE(out.complete) << piece;
    EXPECT_EQ(out.text, "{\"a\":1}") << piece;
  }
}

// A last block without bytes in a frame that declares three: libzstd refuses it in one piece only.
TEST(ZstdBody, EndsAlikeHoweverItWasCut) {
  const std::string frame_of_none("\x28\xB5\x2F\xFD\x20\x03\x01\x00\x00", 9);
  for (const std::string& bytes : {frame_of_none, frame_of_none + frame("{}")}) {
    const Outcome whole = decode(bytes, bytes.size());
    for (size_t piece = 1; piece < bytes.size(); ++piece) {
      const Outcome pieces = decode(bytes, piece);
      EXPECT_EQ(pieces.progress, whole.progress) << piece;
      EXPECT_EQ(pieces.complete, whole.complete) << piece;
      EXPECT_EQ(pieces.text, whole.text) << piece;
    }
  }
}

// libzstd may take the magic numbers of its formats before RFC 8878 too.
TEST(ZstdBody, RefusesOtherFormats) {
  for (const char version : {'\x22', '\x23', '\x24', '\x25', '\x26', '\x27'}) {
    const std::string old = std::string(1, version) + "\xB5\x2F\xFD\x9F";
    for (const std::string& bytes : {old, frame("{}") + old}) {
      for (const size_t piece : {bytes.size(), size_t{1}}) {
        EXPECT_EQ(decode(bytes, piece).progress, Progress::kCorrupt)
            << int{version} << ' ' << piece;
      }
    }
  }
  EXPECT_EQ(decode("\x28", 1).progress, Progress::kOk);
  EXPECT_FALSE(decode("\x28", 1).complete);
}

}  // namespace
}  // namespace strata::server
