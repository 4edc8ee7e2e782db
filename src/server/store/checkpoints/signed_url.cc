// SPDX-License-Identifier: Apache-2.0
#include "server/store/checkpoints/signed_url.h"

#include <fmt/format.h>

#include <cmath>

#include "base/ascii.h"
#include "base/crypto.h"

namespace strata::server {

int64_t UrlSigner::expiry(const CheckpointRow& row, double now) const {
  const double until = now + url_ttl_;
  return static_cast<int64_t>(
      std::floor(row.expires_at ? std::min(until, *row.expires_at) : until));
}

std::string UrlSigner::make_token(int64_t tenant_number, const std::string& checkpoint_id,
                                  const std::string& file, int64_t expires) const {
  // None of the parts that were signed holds a newline.
  return base64url(hmac_sha256(
      secret_, fmt::format("file\n{}\n{}\n{}\n{}", tenant_number, checkpoint_id, file, expires)));
}

std::string UrlSigner::make_signed_url(const std::string& base_url, const CheckpointRow& row,
                                       const std::string& file, const std::string& tenant,
                                       int64_t expires, double now) const {
  const int64_t number = store_.intern_tenant(tenant, now);
  return fmt::format("{}/api/v1/files/{}/{}?expires={}&tenant={}&token={}", base_url, row.id, file,
                     expires, number, make_token(number, row.id, file, expires));
}

UrlSigner::Verdict UrlSigner::verify_claim(const Claim& claim, double now,
                                           std::optional<CheckpointRow>& row,
                                           std::string& whose) const {
  const auto expires = parse_whole_number(claim.expires);
  const auto number = parse_whole_number(claim.tenant_number);
  if (!expires || !number) return Verdict::kWrong;
  if (!equal_constant_time(make_token(*number, claim.checkpoint_id, claim.file, *expires),
                           claim.token)) {
    return Verdict::kWrong;
  }
  const auto tenant = store_.find_tenant(*number);
  const auto found = store_.find_checkpoint_by_id(claim.checkpoint_id);
  if (!tenant || !found) return Verdict::kWrong;
  const bool is_expired = now >= static_cast<double>(*expires);
  const bool is_dead = found->deleted_at || (found->expires_at && now >= *found->expires_at);
  if (is_expired || is_dead) return Verdict::kGone;
  if (!has_key_(*tenant)) return Verdict::kWrong;
  if (found->tenant != *tenant && !found->is_public) return Verdict::kWrong;
  row = found;
  whose = *tenant;
  return Verdict::kGood;
}

}  // namespace strata::server
