// SPDX-License-Identifier: Apache-2.0
// What the works of `strata bench` run on.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "model/weights/weights.h"

namespace strata::apps {

// The forms of a model whose weights are random: those of few bits where `name` is one (q4_0), and
// none for "bf16" and "auto".
model::WeightForms random_forms(const Backend& backend, const model::ModelConfig& config,
                                DType dtype, const std::string& name);
// Of --weights.
std::string bench_weights_help();
// Bytes of a weight of matrices, on average, where some are kept in few bits; else 0.
double narrow_bytes(const model::ModelWeights& weights);
// Small random weights, cheap to make: a hash of the element's index, uniform in +-0.035 (deviation
// 0.02); of few bits random codes, whose scales make about as much of them.
void fill_random(Backend& backend, model::ModelWeights& weights);

std::vector<int32_t> random_tokens(int64_t count, int64_t vocab, uint64_t stream);

}  // namespace strata::apps
