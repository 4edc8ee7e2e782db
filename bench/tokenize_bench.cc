// SPDX-License-Identifier: Apache-2.0
// Encoding and decoding of prose on one thread: MB/s and tokens/s.
//   tokenize_bench build/tokenizers/qwen3.json [text file]
// tools/check/compare_tokenize.py runs it next to Hugging Face `tokenizers`.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "text/tokenizer/tokenizer.h"

namespace {

constexpr int kRepeats = 7;
constexpr size_t kDocumentBytes = 4096;

// Prose without a file: the words of a sentence in an order that does not repeat.
std::string default_prose() {
  constexpr const char* kWords[] = {"the",   "quick", "brown",     "fox",    "jumped",
                                    "over",  "a",     "lazy",      "dog",    "while",
                                    "every", "other", "animal",    "slept",  "quietly",
                                    "under", "those", "wonderful", "trees,", "and"};
  std::string out;
  uint64_t state = 1;
  while (out.size() < (1 << 20)) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    out += kWords[(state >> 33) % std::size(kWords)];
    out += (state >> 40) % 13 == 0 ? ".\n" : " ";
  }
  return out;
}

double median_seconds(const auto& work) {
  std::vector<double> times;
  for (int i = 0; i < kRepeats; ++i) {
    const double begin = strata::now_seconds();
    work();
    times.push_back(strata::now_seconds() - begin);
  }
  std::nth_element(times.begin(), times.begin() + kRepeats / 2, times.end());
  return times[kRepeats / 2];
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: tokenize_bench tokenizer.json [text file]\n");
    return 2;
  }
  try {
    const double begin = strata::now_seconds();
    const auto tokenizer = strata::text::Tokenizer::load(argv[1]);
    const double load = strata::now_seconds() - begin;
    const std::string text =
        argc > 2 ? strata::read_file(argv[2], int64_t{1} << 30) : default_prose();
    std::vector<std::string_view> documents;
    for (size_t pos = 0; pos < text.size(); pos += kDocumentBytes)
      documents.push_back(std::string_view(text).substr(pos, kDocumentBytes));
    std::vector<std::vector<int32_t>> ids(documents.size());
    const double encode = median_seconds([&] {
      for (size_t i = 0; i < documents.size(); ++i) ids[i] = tokenizer.encode(documents[i]);
    });
    size_t num_tokens = 0;
    for (const auto& list : ids) num_tokens += list.size();
    size_t decoded = 0;
    const double decode = median_seconds([&] {
      decoded = 0;
      for (const auto& list : ids) decoded += tokenizer.decode(list).size();
    });
    const double megabytes = static_cast<double>(text.size()) / 1e6;
    fmt::print("load {:.3f} s; {:.2f} MB, {} tokens, {} bytes back\n", load, megabytes, num_tokens,
               decoded);
    fmt::print("encode {:.1f} MB/s {:.2f} Mtokens/s; decode {:.1f} MB/s\n", megabytes / encode,
               static_cast<double>(num_tokens) / encode / 1e6, megabytes / decode);
  } catch (const strata::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
  return 0;
}
