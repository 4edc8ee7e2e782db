// SPDX-License-Identifier: Apache-2.0
#include "server/http/response_head.h"

#include <fmt/format.h>

#include <boost/beast/http/status.hpp>

#include "base/check.h"

namespace strata::server {
namespace {

std::string_view reason(int status) {
  const auto text = boost::beast::http::obsolete_reason(boost::beast::http::int_to_status(status));
  return {text.data(), text.size()};
}

bool is_safe(std::string_view text) {
  return text.find_first_of(std::string_view("\r\n\0", 3)) == std::string_view::npos;
}

}  // namespace

std::string response_head(const Response& response, bool keep_alive, bool is_chunked) {
  const uint64_t length = response.file ? response.file->length : response.bytes().size();
  std::string head = fmt::format("HTTP/1.1 {} {}\r\n", response.status, reason(response.status));
  if (response.status != 204) head += fmt::format("Content-Type: {}\r\n", response.content_type);
  if (response.status != 204 && !response.stream)
    head += fmt::format("Content-Length: {}\r\n", length);
  if (is_chunked) head += "Transfer-Encoding: chunked\r\n";
  head += keep_alive ? "Connection: keep-alive\r\n" : "Connection: close\r\n";
  head += "X-Content-Type-Options: nosniff\r\n";
  for (const Header& header : response.headers) {
    CHECK(is_safe(header.name) && is_safe(header.value), header.name);
    head += fmt::format("{}: {}\r\n", header.name, header.value);
  }
  return head + "\r\n";
}

std::string closing_text(const Response& response) {
  return response_head(response, /*keep_alive=*/false) + response.body;
}

std::string busy_text(std::string_view message) {
  return closing_text(busy_response(503, message));
}

}  // namespace strata::server
