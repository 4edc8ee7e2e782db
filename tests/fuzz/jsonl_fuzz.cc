// SPDX-License-Identifier: Apache-2.0
// A line of a dataset: whatever it holds, an example that keeps its invariants or an Error.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "data/example.h"

namespace {

// Every byte is a token, and one special ends a text: small enough to be written here.
constexpr std::string_view kTokenizer = R"({"version": "1.0", "truncation": null, "padding": null,
  "added_tokens": [{"id": 0, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": true}],
  "normalizer": null,
  "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true},
  "post_processor": null, "decoder": {"type": "ByteLevel"},
  "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": {"<end>": 0, "a": 1, "b": 2, "c": 3, "ab": 4, ":": 5, "\u0120": 6, "\u010a": 7, "\u0120a": 8},
            "merges": ["a b", "\u0120 a"]}})";

void require(bool condition) {
  if (!condition) std::abort();
}

void check(const strata::data::Example& example) {
  require(!example.tokens.empty());
  require(example.tokens.size() == example.targets.size());
  require(example.tokens.size() == example.weights.size());
  int64_t trained = 0;
  for (size_t t = 0; t < example.tokens.size(); ++t) {
    require(example.weights[t] == 0.0f || example.weights[t] == 1.0f);
    trained += example.weights[t] == 1.0f ? 1 : 0;
    if (t > 0) require(example.tokens[t] == example.targets[t - 1]);
  }
  require(trained >= 1 && trained == example.num_trained);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using strata::data::TrainOn;
  static const auto tokenizer = strata::text::Tokenizer::parse(kTokenizer, "fuzz");
  static const strata::data::EndTokens end{.append = 0, .stop = {0}};
  const std::string_view line(reinterpret_cast<const char*>(data), size);
  const auto render = [](const strata::text::ChatRequest& request) {
    return strata::text::RenderedChat{.text = request.messages + request.tools +
                                              (request.add_generation_prompt ? "c" : "")};
  };
  for (const TrainOn train_on : {TrainOn::kLast, TrainOn::kAll}) {
    std::vector<std::string> ignored;
    for (const bool has_template : {true, false}) {
      try {
        const auto record = strata::data::read_record(
            line, {tokenizer, end, render, train_on, has_template, {}}, ignored);
        if (record.is_left_out) continue;
        check(record.example);
        if (record.rejected) check(*record.rejected);
      } catch (const strata::Error&) {
      }
    }
  }
  return 0;
}
