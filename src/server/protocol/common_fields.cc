// SPDX-License-Identifier: Apache-2.0
#include "server/protocol/common_fields.h"

#include "text/unicode/unicode.h"

namespace strata::server {
namespace {

constexpr size_t kMaxMetadataEntries = 64;
constexpr size_t kMaxMetadataBytes = 16 << 10;
constexpr size_t kMaxProject = 64;
constexpr int64_t kMaxTtl = 315'360'000;  // ten years

}  // namespace

std::optional<int64_t> read_ttl(const Fields& body) {
  if (!body.has("ttl_seconds")) return std::nullopt;
  return body.integer("ttl_seconds", 1, kMaxTtl);
}

std::optional<std::string> read_metadata(const Fields& body) {
  return body.maybe_object_text("user_metadata", kMaxMetadataEntries, kMaxMetadataBytes);
}

bool is_valid_project(std::string_view id) {
  return !id.empty() && id.size() <= kMaxProject &&
         id.find_first_not_of(
             "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
             "0123456789._-") == std::string_view::npos;
}

std::string whole_characters(const std::string& text, size_t most) {
  return text.size() <= most ? text : text.substr(0, text::previous_start(text, most + 1));
}

void refuse_token(const Fields& body) {
  if (body.has("weights_access_token")) {
    body.fail("weights_access_token", "is not supported by this server");
  }
}

}  // namespace strata::server
