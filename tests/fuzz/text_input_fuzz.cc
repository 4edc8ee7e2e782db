// SPDX-License-Identifier: Apache-2.0
// Any bytes as text: encoding them never fails, spans cover them, and what is lossless comes back.
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "tests/text/tiny_tokenizer.h"
#include "text/tokenizer/detokenizer.h"
#include "text/tokenizer/tokenizer.h"
#include "text/unicode/unicode.h"

namespace {

using namespace strata;

void check(const text::Tokenizer& tokenizer, std::string_view input, bool leading_space_stays) {
  const auto encoding = tokenizer.encode_with_spans(input);
  CHECK(encoding.ids == tokenizer.encode(input));
  size_t done = 0;
  for (const text::Span span : encoding.spans) {
    CHECK(span.begin == done && span.end >= done, span.begin, span.end, done);
    done = span.end;
  }
  CHECK(done == input.size(), done, input.size());
  const std::string whole = tokenizer.decode(encoding.ids);
  text::IncrementalDetokenizer stream(tokenizer);
  std::string pieces;
  for (const int32_t id : encoding.ids) {
    const std::string piece = stream.push(id);
    CHECK(text::is_valid_utf8(piece));
    pieces += piece;
  }
  pieces += stream.flush();
  CHECK(pieces == whole);
  if (leading_space_stays) CHECK(whole == text::sanitize_utf8(input));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto byte_level =
      text::Tokenizer::parse(text::tiny_byte_level_json(), "tiny byte-level");
  static const auto sentencepiece =
      text::Tokenizer::parse(text::tiny_sentencepiece_json(), "tiny sentencepiece");
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  check(byte_level, input, true);
  check(sentencepiece, input, false);
  return 0;
}
