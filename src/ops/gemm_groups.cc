#include "ops/gemm_groups.h"

#include <algorithm>

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

// Calls body(args of the group's rows, first row, last row) for every group that has rows.
template <typename Body>
void for_groups(Backend& backend, const GemmGroupsArgs& args, Body body) {
  const Scratch::Mark mark(backend.scratch());
  auto* own = static_cast<LowRankRun*>(
      backend.scratch().take(static_cast<int64_t>(args.runs.size() * sizeof(LowRankRun)) + 1));
  size_t next = 0;
  for (const GemmGroup& group : args.groups) {
    if (group.begin == group.end) continue;
    size_t count = 0;
    while (next < args.runs.size() && args.runs[next].begin < group.end) {
      const LowRankRun& run = args.runs[next++];
      CHECK(run.begin >= group.begin && run.end <= group.end, run.begin, run.end, group.begin,
            group.end);
      own[count++] = {.begin = run.begin - group.begin,
                      .end = run.end - group.begin,
                      .x = run.x.slice_rows(group.begin, group.end),
                      .w = run.w};
    }
    body(GemmArgs{.x = args.x.slice_rows(group.begin, group.end),
                  .w = group.w,
                  .runs = std::span<const LowRankRun>(own, count)},
         group.begin, group.end);
  }
}

}  // namespace

void gemm_groups(Backend& backend, const GemmGroupsArgs& args, TensorView y) {
  check_groups(args, y);
  for_groups(backend, args, [&](const GemmArgs& group, int64_t begin, int64_t end) {
    gemm(backend, group, y.slice_rows(begin, end));
  });
}

void gemm_groups_dx(Backend& backend, const GemmGroupsArgs& args, TensorView dx, bool accumulate) {
  check_groups(args, dx);
  for_groups(backend, args, [&](const GemmArgs& group, int64_t begin, int64_t end) {
    gemm_dx(backend, group, dx.slice_rows(begin, end), accumulate);
  });
}

}  // namespace strata::ops
