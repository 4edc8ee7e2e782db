// SPDX-License-Identifier: Apache-2.0
// RowGroups: how the rows of a flat batch divide into sequences and into runs of one adapter. Rows
// of one sequence are contiguous; neighbouring sequences of the same adapter form one run, so
// products see long runs and no sort is needed. Reused from pass to pass: clear() keeps the memory.
// Engine thread only.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "model/adapter/lora.h"

namespace strata::model {

struct AdapterSegment {
  int64_t begin = 0;
  int64_t end = 0;
  LoraAdapter* adapter = nullptr;  // null: the base model
  int64_t first_end = 0;           // its sequences' ends in relative_ends
  int64_t num_ends = 0;

  // The adapter's module for a target; null without an adapter, or where it has none.
  [[nodiscard]] const LoraModule* find_module(int64_t layer, int target) const {
    return adapter == nullptr ? nullptr : adapter->find_module(layer, target);
  }
};

class RowGroups {
 public:
  void clear() {
    runs_.clear();
    ends_.clear();
    relative_ends_.clear();
    longest_run_ = 0;
    distinct_ = true;
  }
  // Appends one sequence of num_rows rows; empty ones are skipped.
  void add_sequence(int64_t num_rows, LoraAdapter* adapter) {
    if (num_rows == 0) return;
    const int64_t begin = num_rows_total();
    if (runs_.empty() || runs_.back().adapter != adapter) begin_run(begin, adapter);
    AdapterSegment& run = runs_.back();
    run.end += num_rows;
    ++run.num_ends;
    ends_.push_back(begin + num_rows);
    relative_ends_.push_back(run.end - run.begin);
    longest_run_ = std::max(longest_run_, run.end - run.begin);
  }
  [[nodiscard]] int64_t num_rows_total() const { return ends_.empty() ? 0 : ends_.back(); }
  [[nodiscard]] std::span<const AdapterSegment> runs() const { return runs_; }
  // Calls body(run, module) for the runs whose adapter has the target's module.
  template <typename Body>
  void for_each_module(int64_t layer, int target, Body&& body) const {
    for (const AdapterSegment& run : runs_) {
      if (const LoraModule* module = run.find_module(layer, target)) body(run, *module);
    }
  }
  // Rows of the longest run, and whether no two runs are of one adapter.
  [[nodiscard]] int64_t longest_run() const { return longest_run_; }
  [[nodiscard]] bool distinct() const { return distinct_; }
  // End rows of all sequences.
  [[nodiscard]] std::span<const int64_t> ends() const { return ends_; }
  // End rows of a run's sequences, counted from the run's first row.
  [[nodiscard]] std::span<const int64_t> ends_of(const AdapterSegment& run) const {
    return std::span(relative_ends_)
        .subspan(static_cast<size_t>(run.first_end), static_cast<size_t>(run.num_ends));
  }

 private:
  void begin_run(int64_t begin, LoraAdapter* adapter) {
    for (const AdapterSegment& run : runs_) distinct_ = distinct_ && run.adapter != adapter;
    runs_.push_back({begin, begin, adapter, static_cast<int64_t>(relative_ends_.size()), 0});
  }

  std::vector<AdapterSegment> runs_;
  std::vector<int64_t> ends_;
  std::vector<int64_t> relative_ends_;
  int64_t longest_run_ = 0;
  bool distinct_ = true;
};

// The rows of passes that expert ranks run at once, each of its own sequences, as those of one pass
// that has the sequences of rank 0, then of rank 1, and so on: the order of their batch.
struct DealtRows {
  RowGroups rows;
  std::vector<int64_t> first_rows;  // where each rank's begin, and behind the last one's

  void clear() {
    rows.clear();
    first_rows.assign(1, 0);
  }
  // Behind the sequences of a rank, which are added to `rows`.
  void end_rank() { first_rows.push_back(rows.num_rows_total()); }
  [[nodiscard]] int64_t first_row(int rank) const { return first_rows[static_cast<size_t>(rank)]; }
  [[nodiscard]] int64_t num_rows(int rank) const { return first_row(rank + 1) - first_row(rank); }
};

}  // namespace strata::model
