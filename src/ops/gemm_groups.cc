#include "ops/gemm_groups.h"

#include <memory>

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

template <typename T>
T* take_array(Backend& backend, size_t count) {
  return static_cast<T*>(backend.scratch().take(static_cast<int64_t>(count * sizeof(T)) + 1));
}

// One product for every group that has rows, in memory of the scratch.
struct Products {
  Scratch::Mark mark;
  GemmArgs* args;
  TensorView* out;
  size_t count = 0;

  Products(Backend& backend, const GemmGroupsArgs& all, TensorView y)
      : mark(backend.scratch()),
        args(take_array<GemmArgs>(backend, all.groups.size())),
        out(take_array<TensorView>(backend, all.groups.size())) {
    auto* own = take_array<LowRankRun>(backend, all.runs.size());
    size_t next = 0;
    for (const GemmGroup& group : all.groups) {
      if (group.begin == group.end) continue;
      const size_t first = next;
      for (; next < all.runs.size() && all.runs[next].begin < group.end; ++next) {
        const LowRankRun& run = all.runs[next];
        CHECK(run.begin >= group.begin && run.end <= group.end, run.begin, run.end, group.begin,
              group.end);
        std::construct_at(own + next, LowRankRun{.begin = run.begin - group.begin,
                                                 .end = run.end - group.begin,
                                                 .x = run.x.slice_rows(group.begin, group.end),
                                                 .w = run.w});
      }
      std::construct_at(args + count,
                        GemmArgs{.x = all.x.slice_rows(group.begin, group.end),
                                 .w = group.w,
                                 .runs = std::span<const LowRankRun>(own + first, next - first)});
      std::construct_at(out + count, y.slice_rows(group.begin, group.end));
      ++count;
    }
  }
};

}  // namespace

void gemm_groups(Backend& backend, const GemmGroupsArgs& args, TensorView y) {
  check_groups(args, y);
  const Products products(backend, args, y);
  gemm_list(backend, {products.args, products.count}, {products.out, products.count});
}

void gemm_groups_dx(Backend& backend, const GemmGroupsArgs& args, TensorView dx, bool accumulate) {
  check_groups(args, dx);
  const Products products(backend, args, dx);
  gemm_dx_list(backend, {products.args, products.count}, {products.out, products.count},
               accumulate);
}

}  // namespace strata::ops
