// SPDX-License-Identifier: Apache-2.0
// A request and its response as plain values: what handlers see of HTTP. The body arrives whole,
// decompressed and within the limits; the key has been checked. Header names are lower case. And
// JSON as responses have it.
#pragma once
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/account.h"
#include "server/http/scope.h"

namespace strata::server {

// `text` as a JSON string with its quotes; bytes that are no UTF-8 (a path of a request, a name cut
// to length) become U+FFFD.
std::string json_quoted(std::string_view text);

// Any value, as its text: written as it is made. Texts are escaped, keys stand in the order given,
// nothing is indented.
//   json_response(200, JsonObject{{"type", "get_info"}, {"lora_rank", rank}}.text())
class Json {
 public:
  Json(std::string_view text) : text_(json_quoted(text)) {}
  Json(const std::string& text) : Json(std::string_view(text)) {}
  Json(const char* text) : Json(std::string_view(text)) {}
  Json(bool value) : text_(value ? "true" : "false") {}
  Json(std::integral auto value) : text_(std::to_string(value)) {}
  Json(std::nullptr_t) : text_("null") {}
  Json(double value);  // the shortest text that reads back as it; null when it is not finite

  // What is JSON already.
  static Json written(std::string text);

  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  Json() = default;
  std::string text_;
};

class JsonObject {
 public:
  JsonObject() = default;
  JsonObject(std::initializer_list<std::pair<std::string_view, Json>> fields) {
    for (const auto& [name, value] : fields) add(name, value);
  }
  JsonObject& add(std::string_view name, const Json& value);
  [[nodiscard]] std::string text() const { return "{" + fields_ + "}"; }
  operator Json() const { return Json::written(text()); }

 private:
  std::string fields_;
};

class JsonArray {
 public:
  JsonArray() = default;
  template <typename T>
  explicit JsonArray(const std::vector<T>& values) {
    for (const T& value : values) add(Json(value));
  }
  JsonArray& add(const Json& value);
  [[nodiscard]] std::string text() const { return "[" + values_ + "]"; }
  operator Json() const { return Json::written(text()); }

 private:
  std::string values_;
};

struct Route;

struct Header {
  std::string name;
  std::string value;
};

struct Request {
  std::string method;  // "GET"
  std::string path;    // percent-decoded, without the prefix of --public-url and without the query
  std::string query;   // as sent, without '?'
  std::vector<Header> headers;
  std::string body;
  // What the request holds of its tenant's account until its answer's last byte: the body too, as
  // long as it is held. Null: nobody counts (a test).
  std::shared_ptr<Charge> charge = {};
  // Set by Router::match_route(): null where no route has this path, or none with this method.
  const Route* route = nullptr;
  std::vector<std::string> parts;  // what the {} of the route matched, in order
  std::string allowed;             // the path's methods, where only the method is wrong
  bool is_open = false;            // of these one needs no key
  std::string tenant;              // whose key it was; empty where no key is needed
  bool is_admin = false;
  Scope scope = Scope::kAll;  // of the key; its route has been held against it
  std::string key_id = {};    // of the key, empty where none is needed
  // What the request is about, for the audit log: set by note(), and there when `this` is gone.
  std::shared_ptr<std::string> about = {};
  // The address of the peer, or of the client behind a trusted proxy; empty: this machine's own.
  std::string address = {};
  std::string base_url;  // "http://host:port" or --public-url: what absolute links start with

  [[nodiscard]] std::string_view header(std::string_view name) const;  // empty when absent
  // I/O thread, before the response. Names of things, never what they hold; the last one stays.
  void note(std::string_view object) const {
    if (about) about->assign(object.substr(0, 512));
  }
  // What to do if the peer goes before it is answered, on a route that watches its peer. I/O
  // thread.
  std::shared_ptr<std::function<void()>> on_hang_up = {};
  // When the body was read: it counts no longer.
  void free_body() {
    std::string().swap(body);  // an assignment would keep its memory
    if (charge != nullptr) charge->release(Use::kBody);
  }
  // The decoded value of a query parameter.
  [[nodiscard]] std::optional<std::string> query_parameter(std::string_view name) const;
  // major * 1'000'000 + minor * 1'000 + patch of X-Stainless-Package-Version; a missing or
  // unreadable one counts as the newest.
  [[nodiscard]] int64_t sdk_version() const;
};

// Bytes [offset, offset + length) of a file, streamed after the headers.
struct FilePart {
  std::string path;
  uint64_t offset = 0;
  uint64_t length = 0;
  std::string tenant = {};  // whom it counts for
};

class BodyStream;
struct Encoding;

struct Response {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;                                     // never empty for an error
  std::shared_ptr<const std::string> shared_body = {};  // when set: instead of body
  std::vector<Header> headers;
  std::optional<FilePart> file;                   // then the body is empty
  std::shared_ptr<BodyStream> stream = {};        // likewise; it comes as it is made
  std::shared_ptr<const Encoding> encoding = {};  // when set: makes what is sent in place of this

  [[nodiscard]] const std::string& bytes() const { return shared_body ? *shared_body : body; }
  [[nodiscard]] size_t num_bytes() const;  // that it holds
};

// A result whose form depends on what a poll accepts. Any thread.
struct Encoding {
  std::function<Response(bool as_json)> make;
  size_t num_bytes = 0;  // of what it is made from
};

inline size_t Response::num_bytes() const {
  return encoding ? encoding->num_bytes : bytes().size();
}

constexpr std::string_view kProtobuf = "application/x-protobuf";

// "Application/JSON; charset=utf-8" is application/json.
std::string media_type(std::string_view content_type);

// An Accept that names JSON and nothing that protobuf is: SDKs before 0.19, curl when told so.
bool accepts_json_only(std::string_view accept);

Response json_response(int status, std::string json_text);
// {"detail": message}: what every fault of a request looks like.
Response error_response(int status, std::string_view message);

// With Retry-After.
Response with_retry_after(Response response, int retry_seconds);

// Its status line and header fields, to the empty line. Content-Length is that of the body or of
// the file part; of a stream there is none, and where it is not chunked either, it ends with the
// connection.
std::string response_head(const Response& response, bool keep_alive, bool is_chunked = false);

// A whole response that closes its connection, for one whose request is not read.
std::string closing_text(const Response& response);

// Appends to a body; its memory grows by doubling, but not beyond `limit` bytes if that suffices.
void append_with_capped_capacity(std::string& body, std::string_view bytes, uint64_t limit);

// Takes the response of one request: called exactly once, from any thread.
using Respond = std::function<void(Response)>;

constexpr int64_t sdk_version_number(int64_t major, int64_t minor, int64_t patch) {
  return major * 1'000'000 + minor * 1'000 + patch;
}

}  // namespace strata::server
