// SPDX-License-Identifier: Apache-2.0
// Dataset: files of data as examples, in the files' order; what a file holds and how it is packed
// is found out (data/input_file.h, record_reader.h, form.h). All bad records are looked for before
// any is reported, so that a user mends a file in one go; then nothing starts.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/example.h"
#include "data/example_store.h"
#include "data/field_names.h"
#include "data/record_reader.h"
#include "data/sources.h"

namespace strata::report {
class Progress;
}

namespace strata::data {

// What becomes of an example of more than max_length tokens.
enum class Overlong {
  kDrop,
  kCut,    // its first max_length tokens stay, where one of them is trained
  kSplit,  // pieces of max_length tokens; each but the first begins with the token before it, so
           // that every trained token is trained once; pieces with none are left out
};

Overlong parse_overlong(const std::string& text);  // "drop", "cut", "split"

// Lines that something happened to: how many, and the first of them.
struct LineList {
  static constexpr size_t kShown = 10;
  int64_t count = 0;
  std::vector<int64_t> first = {};

  void add(int64_t line);
  // "3", "3 and 9", "1, 2, 3 and 7 more"
  [[nodiscard]] std::string text() const;
};

// The first bad records, as "FILE:LINE: what", and how many there are in all.
struct FaultList {
  int64_t count = 0;
  std::vector<std::string> first = {};
  std::string advice = {};  // what the first bad file may be; may be empty

  void add(const std::string& file, int64_t line, const std::string& what, size_t shown);
  // "" of none.
  [[nodiscard]] std::string text() const;
};

struct DataFile {
  std::shared_ptr<const InputFile> file;
  double weight = 1;
  Layout layout = Layout::kLines;
  int64_t first = 0;  // of its examples in the store
  int64_t count = 0;
  std::array<int64_t, kNumForms> forms = {};  // records of each
  LineList too_long = {};                     // records of more than max_length tokens
  // The lines of its examples, with ReadOptions::looks_only or prompts.
  std::vector<int64_t> lines = {};
  LineList left_out = {};       // of these: nothing of them is trained on
  LineList marked_out = {};     // records that their marks leave out (data/training_marks.h)
  int64_t num_marked_out = 0;   // answers that are not trained on for their marks
  FaultList not_found = {};     // answers that are left out, since the render does not show where
  bool has_read_clock = false;  // the chat template wrote dates that nobody gave
  // Pairs that are left out, with ReadOptions::pairs.
  LineList equal_sides = {};  // of which both answers have the same tokens
  LineList duplicates = {};   // of which an equal one came before
  LineList ties = {};         // of which both answers have the same score
};

struct Dataset {
  Examples examples;
  int64_t num_lines = 0;     // records
  int64_t num_too_long = 0;  // of them, with more than max_length tokens
  int64_t num_tokens = 0;    // positions of all examples
  int64_t num_trained = 0;
  std::vector<std::string> ignored_fields = {};
  std::vector<DataFile> files = {};
  // With ReadOptions::prompts the JSON objects that they are from, by their numbers in the store.
  std::shared_ptr<const std::vector<std::string>> records = {};
  FaultList faults = {};  // with ReadOptions::looks_only
};

struct ReadOptions {
  int64_t max_length = 2048;  // tokens of a text, end token included
  Overlong overlong = Overlong::kDrop;
  std::vector<FieldName> fields = {};  // names of the files' own
  int64_t in_memory = ExampleStore::kInMemory;
  // Not to be trained on: faults are listed and not thrown, preference pairs stand for their chosen
  // answers (without `pairs`), long examples stay as they are, and there may be no example.
  bool looks_only = false;
  // Each record is a preference pair, and an example is both of its answers; a pair is left out of
  // which one answer is. Without it a pair is a fault.
  bool pairs = false;
  // Each record is a prompt to be answered (data/prompt.h), of which nothing is trained; longer
  // ones are dropped.
  bool prompts = false;
};

// The record of example `i`, which is a prompt.
const std::string& record_of(const Dataset& dataset, size_t i);
// Bytes of all records.
int64_t record_bytes(const Dataset& dataset);

// Throws Error with "FILE:LINE: what" for the first bad records (five at most, and how many more
// there are), and for files that leave no example. `progress` (of bytes read) may be null.
Dataset read_dataset(const std::vector<Source>& sources, const ExampleContext& context,
                     const ReadOptions& options, report::Progress* progress = nullptr);

// The same examples in that order (numbers in the store), with its counts; files as they are.
Dataset with_order(const Dataset& dataset, std::vector<int64_t> order);

// What was seen in a file that is not plain JSONL in our own forms: "data.json.gz looks like
// Alpaca: instruction, input, output (a JSON array, gzip)"; else empty.
std::string describe_format(const DataFile& file);

// "data.jsonl: 3 answers are marked as not to be trained on; 2 examples are left out by their marks
// (lines 4 and 9)"; empty where there are none.
std::string marked_out_text(const DataFile& file);

// "pairs.jsonl: 3 pairs are left out: 2 with equal answers (lines 3 and 9), 1 that came before
// (line 7)"; empty where there are none.
std::string left_out_pairs_text(const DataFile& file);

// What happened to records that were too long: "data.jsonl: 12 longer than --max-length 2048 are
// dropped: lines 3, 9, ..."; empty where there were none.
std::string overlong_text(const DataFile& file, const ReadOptions& options);

}  // namespace strata::data
