// SPDX-License-Identifier: Apache-2.0
// HeldCopies: copies of adapters that wait to be written, under the request that asked for each.
// The engine puts them here and answers with what is to be written where (api::Saved); a job that
// is named by the request writes it, or lets it go. Any thread.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "api/result.h"
#include "base/mutex.h"
#include "engine/adapter_state.h"

namespace strata::engine {

class HeldCopies {
 public:
  // `metadata`: of every adapter's file, in whatever form.
  explicit HeldCopies(std::map<std::string, std::string> metadata = {})
      : metadata_(std::move(metadata)) {}
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // What was made of it, for the answer.
  api::Saved add_pending_write(const api::RequestId& request, AdapterCopy copy, api::Saved as,
                               const std::string& base_model_name);
  // Writes and syncs the files, then lets the copy go, also when that throws. Returns their bytes;
  // nothing where there is no such copy.
  std::optional<int64_t> flush_copy(const api::RequestId& request);
  void drop(const api::RequestId& request);

  [[nodiscard]] int64_t num_bytes() const;
  [[nodiscard]] int64_t largest() const;  // of all there ever were

 private:
  struct Held {
    AdapterCopy copy;
    api::Saved as;
    std::string base_model_name;
    int64_t num_bytes = 0;
  };
  [[nodiscard]] std::shared_ptr<const Held> find(const api::RequestId& request) const;

  const std::map<std::string, std::string> metadata_;
  mutable Mutex mutex_;
  std::unordered_map<api::RequestId, std::shared_ptr<const Held>> held_ GUARDED_BY(mutex_);
  int64_t num_bytes_ GUARDED_BY(mutex_) = 0;
  int64_t largest_ GUARDED_BY(mutex_) = 0;
};

}  // namespace strata::engine
