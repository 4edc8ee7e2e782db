// SPDX-License-Identifier: Apache-2.0
#include "tests/golden/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace strata::golden {
namespace {

bool ends_with(const std::string& text, const char* end) { return text.ends_with(end); }

// Ids are right or wrong.
bool is_exact(const std::string& name) {
  return name.starts_with("sample.") &&
         (ends_with(name, ".tokens") || ends_with(name, ".stop") || ends_with(name, ".topk_ids"));
}

double noise_of(const boost::json::value& noise, const char* kind) {
  const auto* found = noise.as_object().if_contains(kind);
  return found == nullptr ? std::numeric_limits<double>::infinity() : found->to_number<double>();
}

}  // namespace

double norm(const std::vector<float>& a, const std::vector<float>* b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = double{a[i]} - (b == nullptr ? 0.0 : double{(*b)[i]});
    sum += d * d;
  }
  return std::sqrt(sum);
}

double relative_l2(const Tensor& got, const Tensor& want) {
  const double scale = norm(want.values, nullptr), error = norm(got.values, &want.values);
  if (scale == 0) return error == 0 ? 0.0 : std::numeric_limits<double>::infinity();
  return error / scale;
}

bool is_f32_only(const std::string& name) {
  return name.starts_with("train.") || name.starts_with("sample.") ||
         name.starts_with("adapter_final.") || name.starts_with("param_final.");
}

double limit_of(const std::string& name, const boost::json::value& noises, bool bf16) {
  if (is_exact(name)) return 0;
  if (!bf16) return std::max(10 * noise_of(noises.at(name), "f32"), 2e-6);
  const auto* found = noises.as_object().if_contains(name);
  // Rounding changed transformers' choice of experts: its error says nothing.
  if (found == nullptr) return std::numeric_limits<double>::infinity();
  const boost::json::value& noise = *found;
  return 2 * std::min(noise_of(noise, "bf16"), noise_of(noise, "bf16_peft"));
}

}  // namespace strata::golden
