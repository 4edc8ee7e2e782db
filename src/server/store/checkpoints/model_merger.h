// SPDX-License-Identifier: Apache-2.0
// ModelMerger: what writes a served model with a checkpoint's adapter merged into its weights. The
// server knows no weights: its owner brings this (apps/serve/merger.h), or none, and then nothing
// is merged. Any thread.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace strata::server {

struct ModelMerger {
  // The most bytes that write() writes of each directory of BaseNames.
  std::vector<int64_t> bytes = {};
  // The model of that number and the adapter of a folder, as files of a Hugging Face directory in
  // the folder `to`, which is there and empty. False where the server is to end: then what is there
  // is not whole. Error{kInvalidArgument, kUnsupported} for what cannot be merged.
  std::function<bool(size_t model, const std::string& adapter, const std::string& to)> write = {};

  explicit operator bool() const { return write != nullptr; }
};

}  // namespace strata::server
