// SPDX-License-Identifier: Apache-2.0
// Dataset: a JSONL file as examples, in the file's order. Blank lines are skipped. All bad lines
// are looked for before any is reported, so that a user mends a file in one go; then nothing
// starts.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "data/example.h"

namespace strata::report {
class Progress;
}

namespace strata::data {

struct Dataset {
  std::vector<Example> examples;
  int64_t num_lines = 0;     // examples + num_too_long
  int64_t num_too_long = 0;  // dropped: more than max_length tokens
  int64_t num_tokens = 0;    // positions of all examples
  int64_t num_trained = 0;
  std::vector<std::string> ignored_fields;
};

// Lines longer than this are refused before they are parsed.
constexpr int64_t kMaxLineBytes = int64_t{64} << 20;

// Throws Error with "FILE:LINE: what" for the first bad lines (five at most, and how many more
// there are), and for a file that leaves no example. max_length counts the tokens of a text, end
// token included. `progress` (of bytes read) may be null.
Dataset read_dataset(const std::string& path, const ExampleContext& context, int64_t max_length,
                     report::Progress* progress = nullptr);

}  // namespace strata::data
