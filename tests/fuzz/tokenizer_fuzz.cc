// SPDX-License-Identifier: Apache-2.0
// tokenizer.json from anybody: it is refused with an Error, or encodes and decodes what is below.
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/error.h"
#include "text/tokenizer/detokenizer.h"
#include "text/tokenizer/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace strata;
  try {
    const auto tokenizer =
        text::Tokenizer::parse({reinterpret_cast<const char*>(data), size}, "fuzz");
    for (const std::string_view sample :
         {"the end. 123 <|end|></s>", " a\u00e9\u0301 \u7684\U0001F600\t\n",
          "aaaaaaaaaaaaaaaaaaaaaaaa\xff"}) {
      const auto encoding = tokenizer.encode_with_spans(sample, true);
      CHECK(encoding.ids == tokenizer.encode(sample, true));
      CHECK(encoding.spans.size() == encoding.ids.size());
      for (const text::Span span : encoding.spans) CHECK(span.end <= sample.size());
      text::IncrementalDetokenizer stream(tokenizer);
      std::string pieces;
      for (const int32_t id : encoding.ids) pieces += stream.push(id);
      pieces += stream.flush();
      CHECK(pieces == tokenizer.decode(encoding.ids));
    }
  } catch (const Error&) {
  }
  return 0;
}
