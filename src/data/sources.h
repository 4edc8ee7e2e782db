// SPDX-License-Identifier: Apache-2.0
// What --data and --eval name, as files: PATH, or PATH:WEIGHT for files that are seen more or less
// often than once in an epoch. A path is a file, a folder (its files of data, by name) or "-" for
// stdin. A file that has the whole text as its name is that file.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace strata::data {

struct Source {
  std::string path;
  double weight = 1;  // above 0
  bool operator==(const Source&) const = default;
};

enum class Weights { kMay, kNone };

// Whether a file of this name is read of a folder: .jsonl, .ndjson, .json, .csv and .tsv, perhaps
// with .gz or .zst.
bool is_data_file_name(std::string name);

// Throws Error that names the option: a path that is not there, a folder without files of data or
// with Parquet, a weight that is none, stdin twice, no path at all.
std::vector<Source> find_sources(const std::string& option, const std::vector<std::string>& texts,
                                 Weights weights = Weights::kMay);

// Every example of a file of weight w stands w times in the order: the whole part of w each, and of
// the rest a share that is drawn from the seed. counts[i]: examples of source i, which stand one
// behind the other from first[i] on; of these `kept` (ascending, numbers of examples) are taken.
struct SourceRange {
  double weight = 1;
  int64_t first = 0;
  int64_t count = 0;
};
std::vector<int64_t> weighted_order(const std::vector<SourceRange>& ranges,
                                    const std::vector<int64_t>& kept, uint64_t seed);

}  // namespace strata::data
