// SPDX-License-Identifier: Apache-2.0
#include "ops/gemm_groups.h"

namespace strata::ops {
namespace {

void check_groups(const GemmGroupsArgs& args, const TensorView& out) {
  CHECK(out.rows() == args.x.rows(), out.rows(), args.x.rows());
  int64_t end = 0;
  for (const GemmGroup& group : args.groups) {
    CHECK(group.begin >= end && group.end >= group.begin && group.end <= args.x.rows(), group.begin,
          group.end, end, args.x.rows());
    end = group.end;
  }
}

// One product for every group that has rows.
void list_products(const GemmGroupsArgs& all, TensorView y, GemmGroupsLists& lists) {
  lists.products.clear();
  lists.outputs.clear();
  lists.runs.clear();
  lists.runs.reserve(all.runs.size());  // products borrow from it
  size_t next = 0;
  for (const GemmGroup& group : all.groups) {
    if (group.begin == group.end) continue;
    const size_t first = lists.runs.size();
    for (; next < all.runs.size() && all.runs[next].begin < group.end; ++next) {
      const LowRankSegment& run = all.runs[next];
      CHECK(run.begin >= group.begin && run.end <= group.end, run.begin, run.end, group.begin,
            group.end);
      lists.runs.push_back({.begin = run.begin - group.begin,
                            .end = run.end - group.begin,
                            .x = run.x.slice_rows(group.begin, group.end),
                            .w = run.w});
    }
    lists.products.push_back({.x = all.x.slice_rows(group.begin, group.end),
                              .w = group.w,
                              .runs = std::span(lists.runs).subspan(first)});
    lists.outputs.push_back(y.slice_rows(group.begin, group.end));
  }
}

}  // namespace

void gemm_groups(Backend& backend, const GemmGroupsArgs& args, TensorView y) {
  check_groups(args, y);
  GemmGroupsLists own;
  GemmGroupsLists& lists = args.lists != nullptr ? *args.lists : own;
  list_products(args, y, lists);
  gemm_list(backend, lists.products, lists.outputs, args.x.rows());
}

void gemm_groups_dx(Backend& backend, const GemmGroupsArgs& args, TensorView dx, bool accumulate) {
  check_groups(args, dx);
  GemmGroupsLists own;
  GemmGroupsLists& lists = args.lists != nullptr ? *args.lists : own;
  list_products(args, dx, lists);
  gemm_dx_list(backend, lists.products, lists.outputs, accumulate, args.x.rows());
}

}  // namespace strata::ops
