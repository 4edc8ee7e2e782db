// SPDX-License-Identifier: Apache-2.0
// strata pull: a model or a data set of the Hugging Face hub into its cache, by Hugging Face's own
// program (hf). Of a data set's files of Parquet Python's pyarrow makes JSONL.
#pragma once
#include <string>

namespace strata::apps {

struct PullOptions {
  std::string name;  // ORG/NAME
  bool dataset = false;
  std::string out = {};  // folder of the JSONL; empty: NAME
};

// Error where there is no hf, or no pyarrow for files that want it, which says how to install it,
// or where one of them fails.
int run_pull(const PullOptions& options);

}  // namespace strata::apps
