// SPDX-License-Identifier: Apache-2.0
// BodySink: takes a request's body as it arrives: decompresses it, and holds it to its limit, to
// the least rate, and to what its tenant and all may have in bodies. I/O thread; one request.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/body/zstd_body.h"
#include "server/http/request_check.h"

namespace strata::server {

struct BodyFault {
  int status = 0;
  std::string text;
};

class BodySink {
 public:
  // Appends to request.body.
  BodySink(const HttpOptions& options, const BodyLimit& limit, Request& request);

  // Work of a millisecond or two; while more() it is to be called again with what is left of them.
  // The caller's buffer has `buffer_bytes`, which count too.
  [[nodiscard]] std::optional<BodyFault> take(std::string_view& bytes, size_t buffer_bytes);
  [[nodiscard]] bool more() const { return more_; }
  // After the last byte. From here the body counts until `request` lets it go.
  [[nodiscard]] std::optional<BodyFault> finish();
  [[nodiscard]] std::optional<BodyFault> check_rate(double now) const;

 private:
  [[nodiscard]] BodyFault too_large() const;
  [[nodiscard]] std::optional<BodyFault> count(uint64_t held);

  const HttpOptions& options_;
  BodyLimit limit_;
  Request& request_;
  std::optional<ZstdBody> zstd_;
  std::shared_ptr<SharedLimit::Share> share_ = std::make_shared<SharedLimit::Share>();
  double begin_;
  uint64_t read_ = 0;
  bool more_ = false;
};

}  // namespace strata::server
