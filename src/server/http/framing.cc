// SPDX-License-Identifier: Apache-2.0
#include "server/http/framing.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace strata::server {
namespace {

// `word` is in lower case.
bool is_word(std::string_view text, std::string_view word) {
  return std::ranges::equal(text, word, [](char a, char b) {
    return (a >= 'A' && a <= 'Z' ? static_cast<char>(a - 'A' + 'a') : a) == b;
  });
}

bool is_scheme(std::string_view text) { return is_word(text, "http") || is_word(text, "https"); }

}  // namespace

void take_authority(std::string_view& target, std::vector<Header>& headers) {
  const size_t colon = target.find("://");
  if (colon == std::string_view::npos || !is_scheme(target.substr(0, colon))) return;
  const size_t begin = colon + 3;
  const size_t end = std::min(target.find_first_of("/?", begin), target.size());
  for (Header& header : headers) {
    if (header.name == "host") header.value = std::string(target.substr(begin, end - begin));
  }
  target = end < target.size() && target[end] == '/' ? target.substr(end) : "/";
}

std::optional<Response> check_framing(const Framing& framing, const std::vector<Header>& headers) {
  // Of two, a proxy may have believed the other one (RFC 9112, 3.2).
  for (const std::string_view name : {"host", "x-api-key", "content-length"}) {
    const auto is_this = [&](const Header& header) { return header.name == name; };
    if (std::ranges::count_if(headers, is_this) > 1)
      return error_response(400, fmt::format("{}: this header stands there twice", name));
  }
  int codings = 0;
  bool has_length = false;
  for (const Header& header : headers) {
    if (header.name == "content-length") {
      has_length = true;
      if (header.value.find(',') != std::string::npos)
        return error_response(400, "Content-Length: has several numbers, wanted one");
    }
    if (header.name != "transfer-encoding") continue;
    ++codings;
    if (is_word(header.value, "chunked") && framing.is_chunked && codings == 1) continue;
    return error_response(400, fmt::format("Transfer-Encoding: got '{}', wanted 'chunked' alone "
                                           "and once, or Content-Length instead",
                                           one_word(header.value).substr(0, 100)));
  }
  if (codings > 0 && has_length) {
    return error_response(400, "Transfer-Encoding and Content-Length exclude each other");
  }
  if (codings > 0 && framing.version < 11) {
    return error_response(400, "Transfer-Encoding: HTTP/1.0 has none; want Content-Length");
  }
  return std::nullopt;
}

}  // namespace strata::server
