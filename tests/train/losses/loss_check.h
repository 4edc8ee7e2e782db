// SPDX-License-Identifier: Apache-2.0
// A formula against its definition in double: values to 8 roundings of fp32, slopes against a
// central difference, and zero where the weight is zero.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "train/loss.h"

namespace strata::train {

// What a definition reads: p the logprob, f the one that stopgrad sees, w the weight, q the
// sampler's logprob, a the advantage, s the value of the sequence.
struct Definition {
  double p, f, w, q, a, s;
};

constexpr float kSequenceValue = 1.125f;

inline api::Loss loss_with(api::LossName name, const std::vector<float>& options) {
  api::Loss loss = {.name = name};
  std::copy(options.begin(), options.end(), loss.options.begin());
  return loss;
}

inline TokenInputs token_inputs(const api::Loss& loss, float p, float w, float q, float a) {
  TokenInputs in = {.loss = loss, .logprob = p, .weight = w, .sequence = kSequenceValue};
  for (const api::LossInputRow& row : api::kLossInputs) in.columns[row.id] = row.otherwise;
  in.columns[api::LossInput::kLogprobs] = q;
  in.columns[api::LossInput::kAdvantages] = a;
  return in;
}

template <typename Loss>
void expect_definition(const api::Loss& loss, Loss definition) {
  constexpr double kStep = 1e-6;
  for (const float p : {-0.01f, -1.5f, -9.0f}) {
    for (const float gap : {-0.7f, -0.1f, 0.05f, 0.6f}) {
      for (const float a : {-2.0f, 0.0f, 1.5f}) {
        for (const float w : {-0.5f, 0.25f, 1.0f}) {
          const float q = p - gap;
          const TokenLoss got = token_loss(token_inputs(loss, p, w, q, a));
          const auto at = [&](double x) {
            return definition(Definition{
                .p = x, .f = p, .w = w, .q = q, .a = a, .s = static_cast<double>(kSequenceValue)});
          };
          EXPECT_NEAR(got.loss, at(p), 1e-6 * std::max(1.0, std::fabs(at(p))));
          const double slope = (at(p + kStep) - at(p - kStep)) / (2.0 * kStep);
          EXPECT_NEAR(got.d_logprob, slope, 1e-5 * std::max(1.0, std::fabs(slope)));
        }
      }
    }
  }
}

}  // namespace strata::train
