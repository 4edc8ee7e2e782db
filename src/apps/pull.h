// SPDX-License-Identifier: Apache-2.0
// strata pull: a model of the Hugging Face hub into its cache, by Hugging Face's own program (hf).
#pragma once
#include <string>

namespace strata::apps {

struct PullOptions {
  std::string model;  // ORG/NAME
};

// Error where there is no hf, which says how to install it, or where it fails.
int run_pull(const PullOptions& options);

}  // namespace strata::apps
