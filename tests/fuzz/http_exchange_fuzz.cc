// SPDX-License-Identifier: Apache-2.0
// Bytes on a connection, as a whole exchange: the server answers or closes, what it answers are
// responses, and neither they nor what was run depend on the pieces in which the bytes came: where
// a request ends is a matter of its bytes alone.
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "server/http/server.h"

namespace {

using namespace strata::server;

constexpr size_t kMostPieces = 64;

void require(bool condition) {
  if (!condition) std::abort();
}

struct Target {
  Target() : path(fmt::format("/tmp/strata_http_fuzz.{}", ::getpid())) {
    HttpOptions options;
    options.socket_path = path;
    options.max_body = options.max_sample_body = options.max_small_body = 1 << 16;
    Router router;
    router.add({"GET", "/api/v1/healthz", BodyKind::kNone, at_once([this](const Request&) {
                  ran += "h";
                  return json_response(200, "{}");
                }),
                false});
    router.add({"POST", "/api/v1/echo", BodyKind::kJson, at_once([this](const Request& request) {
                  ran += "e" + request.body + ";";
                  return json_response(200, "{}");
                })});
    server = std::make_unique<HttpServer>(
        options, std::move(router), [](std::string_view key) -> std::optional<Caller> {
          return key == "tml-good" ? std::optional<Caller>(Caller{"t"}) : std::nullopt;
        });
    server->start();
  }
  std::string path;
  std::string ran;  // by the I/O thread; read when the connection has ended
  std::unique_ptr<HttpServer> server;
};

// The fuzzer's own alarm interrupts what waits.
template <typename Call>
auto uninterrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

// What was answered, and what was run.
struct Outcome {
  std::string statuses, ran;
};

bool is_with_refusal(const Outcome& one, const Outcome& other) {
  return one.statuses == other.statuses + "400 ";
}

// The status of each response: heads, and bodies by their Content-Length. Of a header with several
// faults any may be told: 431 is 400 here. An answer to HEAD has no body, whatever its
// Content-Length says.
std::string statuses_of(std::string_view text, bool has_head_request) {
  std::string out;
  while (!text.empty()) {
    require(text.starts_with("HTTP/1.1 ") && text.size() > 12);
    const std::string_view status = text.substr(9, 3);
    const size_t end = text.find("\r\n\r\n");
    require(end != std::string_view::npos);
    const size_t at = text.find("Content-Length: ");
    const size_t length =
        at < end ? std::strtoull(std::string(text.substr(at + 16, 20)).c_str(), nullptr, 10) : 0;
    out += std::string(status == "431" ? "400" : status) + " ";
    text.remove_prefix(end + 4);
    if (has_head_request && text.starts_with("HTTP/1.1 ")) continue;
    text.remove_prefix(std::min(text.size(), length));
  }
  return out;
}

Outcome talk(Target& target, std::string_view bytes, size_t piece) {
  target.ran.clear();
  const bool has_head_request = bytes.find("HEAD") != std::string_view::npos;
  const int peer = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un where = {};
  where.sun_family = AF_UNIX;
  target.path.copy(where.sun_path, sizeof where.sun_path - 1);
  require(uninterrupted([&] {
            return ::connect(peer, reinterpret_cast<sockaddr*>(&where), sizeof where);
          }) == 0);
  while (!bytes.empty()) {
    const std::string_view part = bytes.substr(0, piece);
    const ssize_t count =
        uninterrupted([&] { return ::send(peer, part.data(), part.size(), MSG_NOSIGNAL); });
    if (count <= 0) break;  // refused already
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  ::shutdown(peer, SHUT_WR);
  std::string answer;
  char chunk[4096];
  for (;;) {
    pollfd wanted = {peer, POLLIN, 0};
    // Nobody is left without an answer or an end.
    require(uninterrupted([&] { return ::poll(&wanted, 1, 20'000); }) == 1);
    const ssize_t count = uninterrupted([&] { return ::recv(peer, chunk, sizeof chunk, 0); });
    if (count <= 0) break;
    answer.append(chunk, static_cast<size_t>(count));
  }
  ::close(peer);
  return {statuses_of(answer, has_head_request), target.ran};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Target target;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const Outcome whole = talk(target, bytes, std::max<size_t>(size, 1));
  const Outcome pieces = talk(target, bytes, std::max<size_t>(1 + size % 7, size / kMostPieces));
  require(whole.ran == pieces.ran);
  // Of a header that never ends, what is wrong with it may be seen or not.
  require(whole.statuses == pieces.statuses || is_with_refusal(whole, pieces) ||
          is_with_refusal(pieces, whole));
  return 0;
}
