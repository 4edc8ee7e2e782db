// SPDX-License-Identifier: Apache-2.0
// strata keygen: a new API key for strata serve.
#pragma once

namespace strata::apps {

struct KeygenOptions {
  bool hash = false;  // print the hash for the file of keys, and the key itself to stderr
};

int run_keygen(const KeygenOptions& options);

}  // namespace strata::apps
