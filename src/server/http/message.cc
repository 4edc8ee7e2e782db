// SPDX-License-Identifier: Apache-2.0
#include "server/http/message.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/status.hpp>
#include <boost/json.hpp>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/ascii.h"
#include "base/check.h"
#include "text/unicode/unicode.h"

namespace strata::server {
namespace {

constexpr int64_t kNewestSdk = sdk_version_number(999, 0, 0);

std::string decode_form_urlencoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '+') {
      out += ' ';
    } else if (text[i] == '%' && i + 2 < text.size() && hex_value(text[i + 1]) >= 0 &&
               hex_value(text[i + 2]) >= 0) {
      out += static_cast<char>(hex_value(text[i + 1]) * 16 + hex_value(text[i + 2]));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

// Takes what stands before the next '&' off `query`, with the '&'.
std::string_view take_pair(std::string_view& query) {
  const size_t end = std::min(query.find('&'), query.size());
  const std::string_view pair = query.substr(0, end);
  query.remove_prefix(std::min(end + 1, query.size()));
  return pair;
}

std::string_view reason_phrase(int status) {
  const auto text = boost::beast::http::obsolete_reason(boost::beast::http::int_to_status(status));
  return {text.data(), text.size()};
}

bool has_cache_control(const std::vector<Header>& headers) {
  return std::ranges::any_of(headers, [](const Header& header) {
    return boost::beast::iequals(header.name, "cache-control");
  });
}

bool is_safe(std::string_view text) {
  return text.find_first_of(std::string_view("\r\n\0", 3)) == std::string_view::npos;
}

}  // namespace

std::string json_quoted(std::string_view text) {
  if (!text::is_valid_utf8(text)) return json_quoted(text::sanitize_utf8(text));
  return boost::json::serialize(boost::json::string_view(text.data(), text.size()));
}

Json::Json(double value) : text_(std::isfinite(value) ? fmt::format("{}", value) : "null") {}

Json Json::written(std::string text) {
  Json out;
  out.text_ = std::move(text);
  return out;
}

JsonObject& JsonObject::add(std::string_view name, const Json& value) {
  if (!fields_.empty()) fields_ += ',';
  fields_ += json_quoted(name);
  fields_ += ':';
  fields_ += value.text();
  return *this;
}

JsonArray& JsonArray::add(const Json& value) {
  if (!values_.empty()) values_ += ',';
  values_ += value.text();
  return *this;
}

std::string_view Request::header(std::string_view name) const {
  for (const Header& header : headers) {
    if (header.name == name) return header.value;
  }
  return {};
}

std::optional<std::string> Request::query_parameter(std::string_view name) const {
  std::string_view rest = query;
  while (!rest.empty()) {
    const std::string_view pair = take_pair(rest);
    const size_t equals = std::min(pair.find('='), pair.size());
    if (decode_form_urlencoded(pair.substr(0, equals)) != name) continue;
    return decode_form_urlencoded(pair.substr(std::min(equals + 1, pair.size())));
  }
  return std::nullopt;
}

int64_t Request::sdk_version() const {
  const std::string_view text = header("x-stainless-package-version");
  int64_t parts[3] = {0, 0, 0};
  const char* at = text.data();
  const char* const end = at + text.size();
  for (int i = 0; i < 3; ++i) {
    const auto [next, fault] = std::from_chars(at, end, parts[i]);
    if (fault != std::errc() || parts[i] < 0 || parts[i] > 999) return kNewestSdk;
    at = next;
    if (at == end) return i == 0 ? kNewestSdk : sdk_version_number(parts[0], parts[1], parts[2]);
    if (*at != '.' && i < 2) return kNewestSdk;
    if (i < 2) ++at;
  }
  return sdk_version_number(parts[0], parts[1], parts[2]);
}

std::string media_type(std::string_view value) {
  std::string out = lower(value.substr(0, value.find(';')));
  std::erase_if(out, [](char c) { return c == ' ' || c == '\t'; });
  return out;
}

bool accepts_json_only(std::string_view accept) {
  const auto has = [&](std::string_view type) { return accept.find(type) != std::string::npos; };
  return has("application/json") && !has(kProtobuf) && !has("*/*") && !has("application/*");
}

Response json_response(int status, std::string json_text) {
  Response response;
  response.status = status;
  response.body = std::move(json_text);
  return response;
}

Response error_response(int status, std::string_view message) {
  return json_response(status, JsonObject{{"detail", message}}.text());
}

Response with_retry_after(Response response, int retry_seconds) {
  response.headers.push_back({"retry-after", std::to_string(retry_seconds)});
  return response;
}

std::string response_head(const Response& response, bool keep_alive, bool is_chunked) {
  const uint64_t length = response.file ? response.file->length : response.bytes().size();
  std::string head =
      fmt::format("HTTP/1.1 {} {}\r\n", response.status, reason_phrase(response.status));
  if (response.status != 204) head += fmt::format("Content-Type: {}\r\n", response.content_type);
  if (response.status != 204 && !response.stream)
    head += fmt::format("Content-Length: {}\r\n", length);
  if (is_chunked) head += "Transfer-Encoding: chunked\r\n";
  head += keep_alive ? "Connection: keep-alive\r\n" : "Connection: close\r\n";
  head += "X-Content-Type-Options: nosniff\r\n";
  // A cache before this server may know nothing of X-API-Key, and give one tenant's answer to all.
  if (!has_cache_control(response.headers)) head += "Cache-Control: no-store\r\n";
  for (const Header& header : response.headers) {
    CHECK(is_safe(header.name) && is_safe(header.value), header.name);
    head += fmt::format("{}: {}\r\n", header.name, header.value);
  }
  return head + "\r\n";
}

std::string closing_text(const Response& response) {
  return response_head(response, /*keep_alive=*/false) + response.body;
}

void append_with_capped_capacity(std::string& body, std::string_view bytes, uint64_t limit) {
  const size_t wanted = body.size() + bytes.size();
  if (wanted > body.capacity() && 2 * body.capacity() > limit) {
    std::string larger;  // reserve() of one that has memory doubles it too
    larger.reserve(std::max<size_t>(wanted, limit));
    larger.append(body);
    body.swap(larger);
  }
  body.append(bytes);
}

}  // namespace strata::server
