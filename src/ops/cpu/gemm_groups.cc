// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/gemm_groups.h"

#include <algorithm>

#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/elementwise.h"
#include "ops/cpu/gemm.h"

namespace strata::ops::cpu {
namespace {

// Rows [begin, end) of one group and one sequence.
struct Part {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t group = 0;
  size_t sequence = 0;
};

// Neighbouring parts of one group and one item of a list; -1: of none.
struct Run {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t group = -1;
  int32_t item = -1;
};

GroupLists& reset_group_lists(CpuBackend& backend, const GroupedRows& rows) {
  GroupLists& lists = backend.group_lists();
  lists.reset(rows);
  return lists;
}

template <typename Item>
void map_sequences_to_items(std::span<const Item> list, std::vector<int32_t>& items) {
  for (size_t i = 0; i < list.size(); ++i) {
    std::fill(items.begin() + list[i].first, items.begin() + list[i].end, static_cast<int32_t>(i));
  }
}

// Where nothing is computed, every token goes to the first groups, the most rows that a group may
// have.
template <typename Body>
void for_each_worst_case_part(const GroupedRows& rows, Body body) {
  int64_t begin = 0;
  for (int64_t group = 0; begin < rows.num_rows; ++group) {
    const int64_t first = begin;
    for (size_t s = 0; s < rows.sequence_ends.size(); ++s) {
      const int64_t end = std::min(first + rows.sequence_ends[s], rows.num_rows);
      if (end > begin) body(Part{begin, end, group, s});
      begin = end;
    }
  }
}

// In the order of rows.
template <typename Body>
void for_each_part(const CpuBackend& backend, const GroupedRows& rows, Body body) {
  if (backend.is_counting()) return for_each_worst_case_part(rows, body);
  const HostAccess access(backend.allocator());
  const std::span<const int64_t> group_ends = rows.group_ends.numbers();
  const std::span<const int64_t> ends = rows.part_ends.numbers();
  const std::span<const int32_t> sequences = rows.part_sequences.numbers();
  int64_t begin = 0;
  size_t p = 0;
  for (size_t group = 0; group < group_ends.size(); ++group) {
    for (; begin < group_ends[group]; begin = ends[p++]) {
      body(Part{begin, ends[p], static_cast<int64_t>(group), static_cast<size_t>(sequences[p])});
    }
  }
}

// body(run, ends of its sequences counted from its first row), for those of an item.
template <typename Item, typename Body>
void for_each_run(const CpuBackend& backend, const GroupedRows& rows, std::span<const Item> list,
                  GroupLists& lists, Body body) {
  map_sequences_to_items(list, lists.items);
  Run run;
  const auto finish = [&] {
    if (run.item >= 0) body(run, std::span<const int64_t>(lists.ends));
  };
  for_each_part(backend, rows, [&](const Part& part) {
    const int32_t item = lists.items[part.sequence];
    if (part.group != run.group || item != run.item) {
      finish();
      run = {part.begin, part.begin, part.group, item};
      lists.ends.clear();
    }
    run.end = part.end;
    lists.ends.push_back(part.end - run.begin);
  });
  finish();
}

// The low-rank segments of groups get a part of item `item`: `last` is that of the part before it
// in its group, or -1.
void add_to_low_rank_segments(std::span<const GroupedLowRank> runs, const Part& part, int32_t item,
                              int32_t last, GroupLists& lists) {
  if (item < 0) return;
  const int64_t group_begin = lists.groups.back().begin;
  if (item != last) {
    const GroupedLowRank& run = runs[static_cast<size_t>(item)];
    lists.low_rank.push_back(
        {.begin = part.begin - group_begin, .x = run.x, .w = run.w.at(part.group)});
  }
  lists.low_rank.back().end = part.end - group_begin;
}

// The groups that have rows, and their low-rank segments, counted from a group's first row.
void list_groups_and_low_rank_segments(const CpuBackend& backend, const GroupedArgs& args,
                                       GroupLists& lists) {
  map_sequences_to_items(args.runs, lists.items);
  int32_t last = -1;  // the item of the group's last run
  for_each_part(backend, args.rows, [&](const Part& part) {
    if (lists.groups.empty() || lists.groups.back().group != part.group) {
      lists.groups.push_back({part.begin, part.begin, part.group, lists.low_rank.size()});
      last = -1;
    }
    lists.groups.back().end = part.end;
    const int32_t item = lists.items[part.sequence];
    add_to_low_rank_segments(args.runs, part, item, last, lists);
    last = item;
  });
}

// Those of the g-th group that has rows.
std::span<LowRankSegment> low_rank_segments_of(GroupLists& lists, size_t g) {
  const size_t first = lists.groups[g].first_run;
  const size_t end =
      g + 1 < lists.groups.size() ? lists.groups[g + 1].first_run : lists.low_rank.size();
  return std::span(lists.low_rank).subspan(first, end - first);
}

TensorView bias_of(const GroupedArgs& args, int64_t group) {
  return args.bias.first.empty() ? TensorView() : args.bias.at(group);
}

// One product for every group that has rows.
void list_products(const CpuBackend& backend, const GroupedArgs& args, TensorView y,
                   GroupLists& lists) {
  list_groups_and_low_rank_segments(backend, args, lists);
  for (size_t g = 0; g < lists.groups.size(); ++g) {
    const GroupLists::Group& group = lists.groups[g];
    const std::span<LowRankSegment> runs = low_rank_segments_of(lists, g);
    for (LowRankSegment& run : runs) run.x = run.x.slice_rows(group.begin, group.end);
    lists.products.push_back({.x = args.x.slice_rows(group.begin, group.end),
                              .w = args.w.at(group.group),
                              .runs = runs,
                              .bias = bias_of(args, group.group)});
    lists.outputs.push_back(y.slice_rows(group.begin, group.end));
  }
}

}  // namespace

void GroupLists::reset(const GroupedRows& rows) {
  const auto most_groups = static_cast<size_t>(rows.group_ends.size());
  const auto most = static_cast<size_t>(rows.part_ends.size());
  const auto empty = [](auto& list, size_t count) {
    list.clear();
    list.reserve(count);
  };
  items.assign(rows.sequence_ends.size(), -1);
  empty(groups, most_groups);
  empty(low_rank, most);
  empty(products, most_groups);
  empty(outputs, most_groups);
  empty(runs, most);
  empty(ends, rows.sequence_ends.size());
}

void split_groups_by_sequence(CpuBackend& backend, IndexView<int32_t> token_of_row,
                              const GroupedRows& rows) {
  if (backend.is_counting()) return;
  const HostAccess access(backend.allocator());
  const std::span<const int32_t> tokens = token_of_row.numbers();
  const std::span<int64_t> ends = rows.part_ends.numbers();
  const std::span<int32_t> sequences = rows.part_sequences.numbers();
  size_t row = 0, p = 0;
  for (const int64_t group_end : rows.group_ends.numbers()) {
    const auto end = static_cast<size_t>(group_end);
    for (size_t s = 0; row < end; ++p) {
      while (rows.sequence_ends[s] <= tokens[row]) ++s;
      while (row < end && tokens[row] < rows.sequence_ends[s]) ++row;
      ends[p] = static_cast<int64_t>(row);
      sequences[p] = static_cast<int32_t>(s);
    }
  }
}

void gemm_groups(CpuBackend& backend, const GroupedArgs& args, TensorView y) {
  GroupLists& lists = reset_group_lists(backend, args.rows);
  list_products(backend, args, y, lists);
  gemm(backend, lists.products, lists.outputs, args.x.rows());
}

void gemm_groups_dx(CpuBackend& backend, const GroupedArgs& args, TensorView dx, bool accumulate) {
  GroupLists& lists = reset_group_lists(backend, args.rows);
  list_products(backend, args, dx, lists);
  gemm_dx_list(backend, lists.products, lists.outputs, accumulate, args.x.rows());
}

void gemm_group_runs(CpuBackend& backend, const GroupedRows& rows, TensorView x,
                     std::span<const GroupedProduct> products, TensorView y) {
  GroupLists& lists = reset_group_lists(backend, rows);
  for_each_run(backend, rows, products, lists, [&](const Run& run, std::span<const int64_t>) {
    const GroupedProduct& product = products[static_cast<size_t>(run.item)];
    lists.runs.push_back(
        {.begin = run.begin, .end = run.end, .w = product.w.at(run.group), .scale = product.scale});
  });
  gemm_runs(backend, x, lists.runs, y);
}

void gemm_group_runs_dx(CpuBackend& backend, const GroupedRows& rows, TensorView dy,
                        std::span<const GroupedProduct> products, TensorView dx, bool accumulate) {
  GroupLists& lists = reset_group_lists(backend, rows);
  for_each_run(backend, rows, products, lists, [&](const Run& run, std::span<const int64_t>) {
    const GroupedProduct& product = products[static_cast<size_t>(run.item)];
    const GemmArgs args = {.x = dy.slice_rows(run.begin, run.end),
                           .w = product.w.at(run.group),
                           .scale = product.scale};
    const TensorView to = dx.slice_cols(0, args.w.cols).slice_rows(run.begin, run.end);
    gemm_dx_list(backend, {&args, 1}, {&to, 1}, accumulate, /*most_rows=*/0);
  });
}

void scale_group_runs(CpuBackend& backend, const GroupedRows& rows, TensorView x,
                      std::span<const GroupedProduct> products, TensorView y) {
  GroupLists& lists = reset_group_lists(backend, rows);
  for_each_run(backend, rows, products, lists, [&](const Run& run, std::span<const int64_t>) {
    const GroupedProduct& product = products[static_cast<size_t>(run.item)];
    const int64_t cols = product.w.first.cols;
    scale(backend, x.slice_cols(0, cols).slice_rows(run.begin, run.end), product.scale,
          y.slice_cols(0, cols).slice_rows(run.begin, run.end));
  });
}

void gemm_dw_groups(CpuBackend& backend, const GroupedRows& rows,
                    std::span<const GroupedGradient> gradients) {
  GroupLists& lists = reset_group_lists(backend, rows);
  for_each_run(backend, rows, gradients, lists, [&](const Run& run, std::span<const int64_t> ends) {
    const GroupedGradient& gradient = gradients[static_cast<size_t>(run.item)];
    gemm_dw(backend, gradient.dy.slice_rows(run.begin, run.end),
            gradient.x.slice_rows(run.begin, run.end), ends, gradient.dw.at(run.group));
  });
}

}  // namespace strata::ops::cpu
