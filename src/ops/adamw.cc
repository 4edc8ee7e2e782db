// SPDX-License-Identifier: Apache-2.0
#include "ops/adamw.h"

#include "ops/checks.h"
#include "ops/rows.h"
#include "ops/stage.h"

namespace strata::ops {
namespace {

void check_args(const AdamWArgs& args) {
  CHECK(args.step >= 1, args.step);
  CHECK(args.beta1 >= 0 && args.beta1 < 1 && args.beta2 >= 0 && args.beta2 < 1, args.beta1,
        args.beta2);
}

void check_views(TensorView g, TensorView p, TensorView m, TensorView v) {
  for (const TensorView& view : {g, p, m, v}) {
    CHECK(view.dtype == DType::kF32 && view.shape == g.shape && view.dense(), view.dtype,
          view.shape.to_string(), g.shape.to_string());
  }
}

void check_item(const AdamWItem& item) {
  check_views(item.g, item.p, item.m, item.v);
  for (const PackItem& pack : item.packs) {
    CHECK(pack.rows.cols() == pack.panel.cols && pack.rows.rows() <= pack.panel.rows,
          pack.rows.shape.to_string(), pack.panel.rows, pack.panel.cols);
  }
}

}  // namespace

void adamw(Backend& backend, const AdamWArgs& args, TensorView g, TensorView p, TensorView m,
           TensorView v) {
  check_args(args);
  check_views(g, p, m, v);
  backend.call()->adamw.run(backend, args, g, p, m, v);
}

void adamw_fused(Backend& backend, const AdamWArgs& args, std::span<const AdamWItem> items) {
  check_args(args);
  for (const AdamWItem& item : items) check_item(item);
  const auto inside = [&](AdamWItem& item) { item.packs = stage_list(backend, item.packs); };
  backend.call()->adamw.list(backend, args, stage_list(backend, items, inside));
}

}  // namespace strata::ops
