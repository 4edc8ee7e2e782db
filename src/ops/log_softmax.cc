// SPDX-License-Identifier: Apache-2.0
#include "ops/log_softmax.h"

#include "ops/checks.h"
#include "ops/rows.h"
#include "ops/stage.h"

namespace strata::ops {
namespace {

void check_logits(TensorView logits, TensorView lse) {
  CHECK(logits.dtype == DType::kF32 && logits.shape.rank() == 2, logits.shape.to_string());
  CHECK(lse.dtype == DType::kF32 && lse.shape == (Shape{logits.shape[0], 2}), lse.shape.to_string(),
        logits.shape.to_string());
}

}  // namespace

void map_logits(Backend& backend, const LogitMap& map, TensorView logits) {
  CHECK(logits.dtype == DType::kF32 && logits.shape.rank() == 2, logits.shape.to_string());
  CHECK(map.cap >= 0.0f, map.cap);
  if (!map.is_identity()) backend.call()->log_softmax.map(backend, map, logits);
}

void logsumexp(Backend& backend, TensorView logits, TensorView lse) {
  check_logits(logits, lse);
  backend.call()->log_softmax.logsumexp(backend, logits, lse);
}

void compute_target_logprobs(Backend& backend, TensorView logits, TensorView lse,
                             std::span<const int32_t> rows, std::span<const int32_t> targets,
                             std::span<float> logprobs) {
  check_logits(logits, lse);
  CHECK(rows.size() == targets.size() && logprobs.size() == targets.size(), rows.size(),
        targets.size(), logprobs.size());
  for (size_t i = 0; i < targets.size(); ++i) {
    CHECK(rows[i] >= 0 && rows[i] < logits.shape[0], rows[i], logits.shape[0]);
    CHECK(targets[i] >= 0 && targets[i] < logits.cols(), targets[i], logits.cols());
  }
  backend.call()->log_softmax.target_logprobs(backend, logits, lse, stage_list(backend, rows),
                                              stage_list(backend, targets), logprobs);
}

void log_softmax_backward(Backend& backend, TensorView logits, TensorView lse,
                          std::span<const int32_t> targets, std::span<const float> d_lp,
                          TensorView d_logits, const LogitMap& map) {
  check_logits(logits, lse);
  CHECK(is_float(d_logits.dtype) && d_logits.shape == logits.shape, d_logits.shape.to_string(),
        logits.shape.to_string());
  CHECK(std::ssize(targets) == logits.shape[0] && d_lp.size() == targets.size(), targets.size(),
        d_lp.size(), logits.shape.to_string());
  for (const int32_t target : targets) {
    CHECK(target >= 0 && target < logits.cols(), target, logits.cols());
  }
  backend.call()->log_softmax.backward(backend, logits, lse, stage_list(backend, targets),
                                       stage_list(backend, d_lp), d_logits, map);
}

}  // namespace strata::ops
