// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/normalizer.h"

#include <string>

#include "base/error.h"
#include "text/unicode/nfc.h"

namespace strata::text {
namespace {

constexpr size_t kMostGrowth = 32;
constexpr size_t kAnyway = 64 << 10;  // bytes: of what short texts become

}  // namespace

AlignedText replace_all(const Regex& pattern, std::string_view content, const AlignedText& in,
                        size_t most) {
  AlignedText out = in.new_empty();
  size_t done = 0;
  int64_t steps_left = Regex::steps_for(std::ssize(in.text));
  const auto replace = [&](size_t begin, size_t end) {
    out.append(in, done, begin);
    out.append_edit(in, begin, end, content);
    done = end;
    if (out.text.size() <= most) return true;
    throw Error(ErrorCode::kInvalidArgument,
                "tokenizer.json: normalizer: a Replace makes more than " + std::to_string(most) +
                    " bytes of a text of " + std::to_string(in.text.size()));
  };
  pattern.find_while(in.text, replace, steps_left);
  out.append(in, done, in.text.size());
  return out;
}

static AlignedText prepend(std::string_view content, const AlignedText& text) {
  AlignedText out = text.new_empty();
  out.append_edit(text, 0, 0, content);
  out.append(text, 0, text.text.size());
  return out;
}

AlignedText normalize(std::span<const NormalizerStep> steps, AlignedText text) {
  const size_t most = kAnyway + kMostGrowth * text.text.size();
  for (const NormalizerStep& step : steps) {
    switch (step.kind) {
      case NormalizerStep::Kind::kNfc:
        text = normalize_nfc(std::move(text));
        break;
      case NormalizerStep::Kind::kPrepend:
        if (!text.text.empty()) text = prepend(step.content, text);
        break;
      case NormalizerStep::Kind::kReplace:
        text = replace_all(*step.pattern, step.content, text, most);
        break;
    }
  }
  return text;
}

}  // namespace strata::text
