#include "ops/log_softmax.h"

#include <cmath>
#include <limits>

#include "ops/cpu/dispatch.h"
#include "ops/cpu/log_softmax.h"

namespace strata::ops {
namespace {

void check_logits(TensorView logits, TensorView lse) {
  CHECK(logits.dtype == DType::kF32 && logits.shape.rank() == 2, logits.shape.to_string());
  CHECK(lse.dtype == DType::kF32 && lse.shape == (Shape{logits.shape[0], 2}), lse.shape.to_string(),
        logits.shape.to_string());
}

const float* logits_row(TensorView logits, int64_t row) {
  return static_cast<const float*>(logits.row(row));
}

}  // namespace

void logsumexp(Backend& backend, TensorView logits, TensorView lse) {
  check_logits(logits, lse);
  cpu::with_path(backend.path(), [&]<typename V>() {
    cpu::for_range(backend, logits.rows(), logits.cols(), [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        float maximum = 0;
        float sum = 0;
        cpu::max_and_sum_exp<V>(logits_row(logits, c), logits.cols(), &maximum, &sum);
        lse.f32()[2 * c] = maximum;
        lse.f32()[2 * c + 1] = static_cast<float>(std::log(double{sum}));
      }
    });
  });
}

void target_logprobs(TensorView logits, TensorView lse, std::span<const int32_t> targets,
                     std::span<float> logprobs) {
  check_logits(logits, lse);
  CHECK(std::ssize(targets) == logits.shape[0] && logprobs.size() == targets.size(), targets.size(),
        logprobs.size(), logits.shape.to_string());
  for (size_t c = 0; c < targets.size(); ++c) {
    CHECK(targets[c] >= 0 && targets[c] < logits.cols(), targets[c], logits.cols());
    const auto row = static_cast<int64_t>(c);
    logprobs[c] = logprob(logits_row(logits, row)[targets[c]], lse.f32() + 2 * row);
  }
}

void log_softmax_backward(Backend& backend, TensorView logits, TensorView lse,
                          std::span<const int32_t> targets, std::span<const float> d_lp,
                          TensorView d_logits) {
  check_logits(logits, lse);
  CHECK(cpu::is_float(d_logits.dtype) && d_logits.shape == logits.shape, d_logits.shape.to_string(),
        logits.shape.to_string());
  CHECK(std::ssize(targets) == logits.shape[0] && d_lp.size() == targets.size(), targets.size(),
        d_lp.size(), logits.shape.to_string());
  for (const int32_t target : targets) {
    CHECK(target >= 0 && target < logits.cols(), target, logits.cols());
  }
  cpu::with_path(backend.path(), [&]<typename V>() {
    cpu::for_range(backend, logits.rows(), logits.cols(), [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        const auto row = static_cast<size_t>(c);
        cpu::log_softmax_backward_row<V>(logits_row(logits, c), logits.cols(), lse.f32() + 2 * c,
                                         targets[row], d_lp[row], d_logits.row(c), d_logits.dtype);
      }
    });
  });
}

}  // namespace strata::ops
