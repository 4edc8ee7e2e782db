// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/normalizer.h"

#include "text/unicode/nfc.h"

namespace strata::text {

AlignedText replace_all(const Regex& pattern, std::string_view content, const AlignedText& in) {
  AlignedText out = in.start();
  size_t done = 0;
  pattern.find_all(in.text, [&](size_t begin, size_t end) {
    out.copy(in, done, begin);
    out.replace(in, begin, end, content);
    done = end;
  });
  out.copy(in, done, in.text.size());
  return out;
}

AlignedText normalize(std::span<const NormalizerStep> steps, AlignedText text) {
  for (const NormalizerStep& step : steps) {
    switch (step.kind) {
      case NormalizerStep::Kind::kNfc:
        text = nfc(std::move(text));
        break;
      case NormalizerStep::Kind::kPrepend: {
        if (text.text.empty()) break;
        AlignedText out = text.start();
        out.replace(text, 0, 0, step.content);
        out.copy(text, 0, text.text.size());
        text = std::move(out);
        break;
      }
      case NormalizerStep::Kind::kReplace:
        text = replace_all(*step.pattern, step.content, text);
        break;
    }
  }
  return text;
}

}  // namespace strata::text
