// SPDX-License-Identifier: Apache-2.0
// RequestIds: names of futures that carry their own proof. An id holds the boot it was made in, a
// number, the kind and a MAC over these and the tenant, so that after a restart, without a row in
// the state store, a lost one (410 or a failed future) differs from an unknown or foreign one
// (404). Each tenant's numbers are its own: they tell nobody how much others do.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace strata::server {

class RequestIds {
 public:
  RequestIds(std::string secret, int64_t boot) : secret_(std::move(secret)), boot_(boot) {}

  // One thread.
  std::string make(std::string_view tenant, bool is_sample);

  enum class Origin {
    kForeign,     // never ours, or another tenant's: 404
    kThisBoot,    // ours; when no future has it any more, its result has expired: 410
    kLostSample,  // of an earlier process: 410
    kLostOther    // of an earlier process: 200 {error, category: server}
  };
  [[nodiscard]] Origin origin(std::string_view tenant, std::string_view id) const;

 private:
  [[nodiscard]] std::string mac(std::string_view tenant, std::string_view body) const;

  std::string secret_;
  int64_t boot_;
  std::map<std::string, uint64_t, std::less<>> next_;  // by tenant: as many as keys name
};

}  // namespace strata::server
