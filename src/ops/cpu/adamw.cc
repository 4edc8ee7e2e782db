// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/adamw.h"

#include <cmath>

#include "ops/adamw.h"
#include "ops/cpu/dispatch.h"
#include "ops/cpu/elementwise.h"
#include "ops/cpu/pack.h"

namespace strata::ops::cpu {
namespace {

AdamWKernel kernel_args_of(const AdamWArgs& args) {
  // 1 - beta^step without cancellation
  const auto correction = [&](double beta) {
    return -std::expm1(static_cast<double>(args.step) * std::log(beta));
  };
  return {.grad_scale = static_cast<float>(args.grad_scale),
          .beta1 = static_cast<float>(args.beta1),
          .one_minus_beta1 = static_cast<float>(1.0 - args.beta1),
          .beta2 = static_cast<float>(args.beta2),
          .one_minus_beta2 = static_cast<float>(1.0 - args.beta2),
          .decay = static_cast<float>(1.0 - args.lr * args.weight_decay),
          .step_size = static_cast<float>(args.lr / correction(args.beta1)),
          .root_correction = static_cast<float>(1.0 / std::sqrt(correction(args.beta2))),
          .eps = static_cast<float>(args.eps)};
}

}  // namespace

void adamw(CpuBackend& backend, const AdamWArgs& args, TensorView g, TensorView p, TensorView m,
           TensorView v) {
  const HostAccess access(backend.allocator());
  const AdamWKernel kernel = kernel_args_of(args);
  with_path(backend.path(), [&]<typename V>() {
    parallel_for_pieces(backend, 1, g.shape.num_elements(), /*dense=*/true,
                        [&](int64_t, int64_t begin, int64_t end) {
                          adamw_piece<V>(kernel, g.f32() + begin, p.f32() + begin, m.f32() + begin,
                                         v.f32() + begin, end - begin);
                        });
  });
}

namespace {

bool is_small(const AdamWItem& item) {
  constexpr int64_t kSmall = 1 << 17;
  return item.p.shape.num_elements() <= kSmall;
}

// Steps the item, then zeroes its gradient.
void step_item(CpuBackend& backend, const AdamWArgs& args, const AdamWItem& item) {
  cpu::adamw(backend, args, item.g, item.p, item.m, item.v);
  cpu::fill_zero(backend, item.g);
}

}  // namespace

void adamw_fused(CpuBackend& backend, const AdamWArgs& args, std::span<const AdamWItem> items) {
  const HostAccess access(backend.allocator());
  for (const AdamWItem& item : items) {
    if (!is_small(item)) step_item(backend, args, item);
  }
  backend.run_in_workers(std::ssize(items), [&](int64_t i, CpuBackend& worker) {
    const AdamWItem& item = items[static_cast<size_t>(i)];
    if (is_small(item)) step_item(worker, args, item);
    for (const PackItem& pack : item.packs) {
      if (pack.rows.rows() > 0) cpu::pack(worker, pack.rows, 0, pack.panel);
    }
  });
}

}  // namespace strata::ops::cpu
