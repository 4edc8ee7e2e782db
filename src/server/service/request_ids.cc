// SPDX-License-Identifier: Apache-2.0
#include "server/service/request_ids.h"

#include <fmt/format.h>

#include "server/crypto.h"

namespace strata::server {
namespace {

constexpr size_t kMacBytes = 15;  // 120 bits, 20 characters without padding
constexpr size_t kMacLength = 20;
constexpr size_t kMaxLength = 80;

}  // namespace

std::string RequestIds::mac(std::string_view tenant, std::string_view body) const {
  return base64url(
      hmac_sha256(secret_, fmt::format("request\n{}\n{}", tenant, body)).substr(0, kMacBytes));
}

std::string RequestIds::make(std::string_view tenant, bool is_sample) {
  auto next = next_.find(tenant);
  if (next == next_.end()) next = next_.emplace(tenant, 0).first;
  const std::string body = fmt::format("{}{}-{}", is_sample ? 's' : 'r', boot_, next->second++);
  return body + "-" + mac(tenant, body);
}

RequestIds::Origin RequestIds::origin(std::string_view tenant, std::string_view id) const {
  if (id.size() < kMacLength + 2 || id.size() > kMaxLength) return Origin::kForeign;
  const std::string_view body = id.substr(0, id.size() - kMacLength - 1);
  const std::string wanted = mac(tenant, body);
  if (id[body.size()] != '-' || !equal_constant_time(wanted, id.substr(body.size() + 1))) {
    return Origin::kForeign;
  }
  const bool is_sample = body.front() == 's';
  if (body.substr(1, body.find('-') - 1) == std::to_string(boot_)) return Origin::kThisBoot;
  return is_sample ? Origin::kLostSample : Origin::kLostOther;
}

}  // namespace strata::server
