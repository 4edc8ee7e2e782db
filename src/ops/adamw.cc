#include "ops/adamw.h"

#include <cmath>

#include "ops/cpu/adamw.h"
#include "ops/cpu/dispatch.h"

namespace strata::ops {
namespace {

cpu::AdamWKernel factors(const AdamWArgs& args) {
  CHECK(args.step >= 1, args.step);
  CHECK(args.beta1 >= 0 && args.beta1 < 1 && args.beta2 >= 0 && args.beta2 < 1, args.beta1,
        args.beta2);
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

void adamw(Backend& backend, const AdamWArgs& args, TensorView g, TensorView p, TensorView m,
           TensorView v) {
  for (const TensorView& view : {g, p, m, v}) {
    CHECK(view.dtype == DType::kF32 && view.shape == g.shape && view.dense(), view.dtype,
          view.shape.to_string(), g.shape.to_string());
  }
  const cpu::AdamWKernel kernel = factors(args);
  cpu::with_path(backend.path(), [&]<typename V>() {
    cpu::for_pieces(backend, 1, g.shape.num_elements(), true,
                    [&](int64_t, int64_t begin, int64_t end) {
                      cpu::adamw_piece<V>(kernel, g.f32() + begin, p.f32() + begin, m.f32() + begin,
                                          v.f32() + begin, end - begin);
                    });
  });
}

}  // namespace strata::ops
