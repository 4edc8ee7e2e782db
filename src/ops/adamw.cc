#include "ops/adamw.h"

#include "ops/checks.h"
#include "ops/cpu/adamw.h"

namespace strata::ops {
void adamw(Backend& backend, const AdamWArgs& args, TensorView g, TensorView p, TensorView m,
           TensorView v) {
  for (const TensorView& view : {g, p, m, v}) {
    CHECK(view.dtype == DType::kF32 && view.shape == g.shape && view.dense(), view.dtype,
          view.shape.to_string(), g.shape.to_string());
  }
  CHECK(args.step >= 1, args.step);
  CHECK(args.beta1 >= 0 && args.beta1 < 1 && args.beta2 >= 0 && args.beta2 < 1, args.beta1,
        args.beta2);
  cpu::adamw(backend, args, g, p, m, v);
}

}  // namespace strata::ops
