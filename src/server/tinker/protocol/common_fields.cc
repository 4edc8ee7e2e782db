// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/protocol/common_fields.h"

#include <fmt/format.h>

#include "base/ascii.h"
#include "text/unicode/unicode.h"

namespace strata::server {
namespace {

constexpr size_t kMaxMetadataEntries = 64;
constexpr size_t kMaxMetadataBytes = 16 << 10;
constexpr size_t kMaxProject = 64;
constexpr int64_t kMaxTtl = 315'360'000;  // ten years

}  // namespace

std::optional<int64_t> read_ttl(const text::Fields& body) {
  if (!body.has("ttl_seconds")) return std::nullopt;
  return body.integer("ttl_seconds", 1, kMaxTtl);
}

std::optional<std::string> read_metadata(const text::Fields& body) {
  return body.maybe_object_text("user_metadata", kMaxMetadataEntries, kMaxMetadataBytes);
}

bool is_valid_project(std::string_view id) {
  return !id.empty() && id.size() <= kMaxProject && is_plain(id);
}

std::vector<std::string> read_stop_texts(const text::Fields& fields, size_t most,
                                         size_t most_bytes) {
  std::vector<std::string> texts;
  if (fields.is_string("stop")) {
    texts = {fields.string("stop")};
  } else {
    texts = fields.strings("stop");
  }
  if (texts.size() > most)
    fields.fail("stop", fmt::format("has {} strings, the limit is {}", texts.size(), most));
  for (const std::string& text : texts) {
    if (text.empty() || text.size() > most_bytes) {
      fields.fail("stop",
                  fmt::format("a string has {} bytes, wanted 1 to {}", text.size(), most_bytes));
    }
  }
  return texts;
}

std::string whole_characters(const std::string& text, size_t most) {
  return text.size() <= most ? text : text.substr(0, text::previous_start(text, most + 1));
}

void refuse_token(const text::Fields& body) {
  if (body.has("weights_access_token")) {
    body.fail("weights_access_token", "is not supported by this server");
  }
}

}  // namespace strata::server
