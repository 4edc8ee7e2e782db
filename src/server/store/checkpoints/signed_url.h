// SPDX-License-Identifier: Apache-2.0
// Signed URLs of checkpoint files: the URL is the key. The token is HMAC-SHA256 over what else the
// URL says, so it serves one tenant, one checkpoint, one file, for a while, and one that is wrong
// costs no query. A name that is saved again has another checkpoint id.
//   <base>/api/v1/files/<checkpoint id>/<file>?expires=<s>&tenant=<number>&token=<base64url>
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "server/store/state/store.h"

namespace strata::server {

class UrlSigner {
 public:
  // `has_key`: whether a tenant still has a key; a URL serves nobody whose last one is gone.
  UrlSigner(std::string secret, StateStore& store, double url_ttl,
            std::function<bool(const std::string& tenant)> has_key)
      : secret_(std::move(secret)),
        store_(store),
        url_ttl_(url_ttl),
        has_key_(std::move(has_key)) {}

  // The second until which a URL made now serves; never beyond the checkpoint's own expiry.
  [[nodiscard]] int64_t expiry(const CheckpointRow& row, double now) const;
  [[nodiscard]] std::string make_signed_url(const std::string& base_url, const CheckpointRow& row,
                                            const std::string& file, const std::string& tenant,
                                            int64_t expires, double now) const;

  enum class Verdict { kGood, kWrong, kGone };
  struct Claim {
    std::string checkpoint_id;
    std::string file;
    std::string expires;
    std::string tenant_number;
    std::string token;
  };
  // kWrong: 404. kGone: 410, the token was right once. `row` is set when it is good, and `whose`,
  // its tenant.
  [[nodiscard]] Verdict verify_claim(const Claim& claim, double now,
                                     std::optional<CheckpointRow>& row, std::string& whose) const;

 private:
  [[nodiscard]] std::string make_token(int64_t tenant_number, const std::string& checkpoint_id,
                                       const std::string& file, int64_t expires) const;

  std::string secret_;
  StateStore& store_;
  double url_ttl_;
  std::function<bool(const std::string& tenant)> has_key_;
};

}  // namespace strata::server
