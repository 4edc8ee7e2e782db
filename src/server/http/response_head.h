// SPDX-License-Identifier: Apache-2.0
// The status line and header fields of a response.
#pragma once
#include <string>
#include <string_view>

#include "server/http/message.h"

namespace strata::server {

// Ends with the empty line. Content-Length is that of the body or of the file part; of a stream
// there is none, and where it is not chunked either, it ends with the connection.
std::string response_head(const Response& response, bool keep_alive, bool is_chunked = false);

// A whole response that closes its connection, for one whose request is not read.
std::string closing_text(const Response& response);
// Such a 503.
std::string busy_text(std::string_view message);

}  // namespace strata::server
