// SPDX-License-Identifier: Apache-2.0
// The rule by which a tensor is a golden's, that of tools/golden/compare_probe.py: relative L2
// error at most max(10 x the noise of transformers in f32, 2e-6); in bf16 at most twice the noise
// of transformers and PEFT in bf16; exactly zero where the reference is.
#pragma once
#include <boost/json.hpp>
#include <string>
#include <vector>

#include "tests/golden/probe_run.h"

namespace strata::golden {

// Of a, or of a - b.
double norm(const std::vector<float>& a, const std::vector<float>* b);
// NaN anywhere gives NaN or infinity, which no limit admits.
double relative_l2(const Tensor& got, const Tensor& want);
// Steps of AdamW and samples turn a rounding into another value: compared in f32 only.
bool is_f32_only(const std::string& name);
// noises: a golden's noise file.
double limit_of(const std::string& name, const boost::json::value& noises, bool bf16);

}  // namespace strata::golden
