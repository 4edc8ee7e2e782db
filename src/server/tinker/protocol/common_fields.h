// SPDX-License-Identifier: Apache-2.0
// Fields that several operations have.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/json_body.h"

namespace strata::server {

// ttl_seconds: 1 s to 10 years, or nothing.
std::optional<int64_t> read_ttl(const text::Fields& body);
// Limits of user_metadata: 64 entries, 16 KiB.
std::optional<std::string> read_metadata(const text::Fields& body);
// Whether it may be a project's id: [A-Za-z0-9._-]{1,64}.
bool is_valid_project(std::string_view id);
// `stop` as a text or a list of texts: `most` of them, of 1 to `most_bytes` each.
std::vector<std::string> read_stop_texts(const text::Fields& fields, size_t most,
                                         size_t most_bytes);
// The beginning of valid UTF-8, of so many bytes at most.
std::string whole_characters(const std::string& text, size_t most);
// A non-null weights_access_token is refused by name.
void refuse_token(const text::Fields& body);

}  // namespace strata::server
