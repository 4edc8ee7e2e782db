// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/log_softmax.h"

#include <cmath>
#include <limits>

#include "ops/cpu/dispatch.h"
#include "ops/log_softmax.h"

namespace strata::ops::cpu {
namespace {

const float* logits_row(TensorView logits, int64_t row) {
  return static_cast<const float*>(logits.row(row));
}

}  // namespace

void map_logits(CpuBackend& backend, const LogitMap& map, TensorView logits) {
  const HostAccess access(backend.allocator());
  with_path(backend.path(), [&]<typename V>() {
    parallel_for(backend, logits.rows(), logits.cols(), [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        map_logits_row<V>(static_cast<float*>(logits.row(c)), logits.cols(), map.scale, map.cap);
      }
    });
  });
}

void logsumexp(CpuBackend& backend, TensorView logits, TensorView lse) {
  const HostAccess access(backend.allocator());
  with_path(backend.path(), [&]<typename V>() {
    parallel_for(backend, logits.rows(), logits.cols(), [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        float maximum = 0;
        float sum = 0;
        compute_max_and_sum_exp<V>(logits_row(logits, c), logits.cols(), &maximum, &sum);
        lse.f32()[2 * c] = maximum;
        lse.f32()[2 * c + 1] = static_cast<float>(std::log(double{sum}));
      }
    });
  });
}

void compute_target_logprobs(CpuBackend& backend, TensorView logits, TensorView lse,
                             std::span<const int32_t> rows, std::span<const int32_t> targets,
                             std::span<float> logprobs) {
  if (backend.is_counting()) return;
  const HostAccess access(backend.allocator());
  for (size_t i = 0; i < targets.size(); ++i) {
    logprobs[i] = logprob(logits_row(logits, rows[i])[targets[i]], lse.f32() + 2 * rows[i]);
  }
}

void log_softmax_backward(CpuBackend& backend, TensorView logits, TensorView lse,
                          std::span<const int32_t> targets, std::span<const float> d_lp,
                          TensorView d_logits, const LogitMap& map) {
  const HostAccess access(backend.allocator());
  with_path(backend.path(), [&]<typename V>() {
    parallel_for(backend, logits.rows(), logits.cols(), [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        const auto row = static_cast<size_t>(c);
        if (map.is_identity()) {
          log_softmax_backward_row<V>(logits_row(logits, c), logits.cols(), lse.f32() + 2 * c,
                                      targets[row], d_lp[row], d_logits.row(c), d_logits.dtype);
        } else {
          mapped_log_softmax_backward_row<V>(logits_row(logits, c), logits.cols(),
                                             lse.f32() + 2 * c, targets[row], d_lp[row], map.scale,
                                             map.cap, d_logits.row(c), d_logits.dtype);
        }
      }
    });
  });
}

}  // namespace strata::ops::cpu
