// SPDX-License-Identifier: Apache-2.0
#include "server/http/handshakes.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <optional>
#include <string>

namespace strata::server {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr size_t kHelloPiece = 2 << 10;
constexpr size_t kMaxHello = 20 << 10;  // with its records' heads
constexpr size_t kRecordHead = 5;       // type, version, length
constexpr size_t kMessageHead = 4;      // type, length
constexpr size_t kMaxRecord = 16 << 10;
constexpr int kMostRecords = 8;
constexpr char kHandshakeRecord = 22;
constexpr char kClientHello = 1;

size_t big_endian(std::string_view bytes) {
  size_t value = 0;
  for (const char byte : bytes) value = value << 8 | static_cast<unsigned char>(byte);
  return value;
}

enum class Record { kWhole, kPartial, kNone };

// Takes the next record of a handshake off `bytes`; what it holds, or the beginning of that, goes
// behind `message`.
Record take_handshake_record(std::string_view& bytes, std::string& message) {
  if (!bytes.empty() && bytes.front() != kHandshakeRecord) return Record::kNone;
  if (bytes.size() < kRecordHead) return Record::kPartial;
  const size_t length = big_endian(bytes.substr(3, 2));
  if (length == 0 || length > kMaxRecord) return Record::kNone;
  const std::string_view part = bytes.substr(kRecordHead, length);
  message += part;
  bytes.remove_prefix(kRecordHead + part.size());
  return part.size() < length ? Record::kPartial : Record::kWhole;
}

// Whether it is the beginning of one, and not yet all of it.
bool may_become_client_hello(std::string_view message) {
  if (!message.empty() && message.front() != kClientHello) return false;
  if (message.size() < kMessageHead) return true;
  const size_t wanted = kMessageHead + big_endian(message.substr(1, 3));
  return wanted <= kMaxHello && message.size() < wanted;
}

asio::awaitable<error_code> read_client_hello(Stream& stream, std::string& hello) {
  error_code fault;
  while (!fault && is_partial_client_hello(hello)) {
    const size_t before = hello.size();
    hello.resize(before + kHelloPiece);
    const size_t count = co_await stream.plain().async_read_some(
        asio::buffer(hello) + before, asio::redirect_error(asio::use_awaitable, fault));
    hello.resize(before + count);
  }
  co_return fault;
}

}  // namespace

// RFC 8446 5.1: a message may be divided among records, though no client of ours does.
bool is_partial_client_hello(std::string_view bytes) {
  if (bytes.size() > kMaxHello) return false;
  std::string message;
  for (int i = 0; i < kMostRecords; ++i) {
    const Record record = take_handshake_record(bytes, message);
    if (record == Record::kNone || !may_become_client_hello(message)) return false;
    if (record == Record::kPartial) return true;
  }
  return false;
}

Handshakes::Place::Place(Handshakes& of, Stream& with) : all(of), stream(with) {
  if (std::ssize(all.open_) >= all.most_) {
    Place& oldest = *all.open_.front();
    all.open_.pop_front();
    oldest.is_ended = true;
    oldest.stream.cancel();
  }
  at = all.open_.insert(all.open_.end(), this);
}

Handshakes::Place::~Place() {
  if (!is_ended) all.open_.erase(at);
}

asio::awaitable<error_code> Handshakes::handshake(Stream& stream, asio::io_context& io) {
  Place place(*this, stream);
  std::string hello;
  if (const error_code fault = co_await read_client_hello(stream, hello)) co_return fault;
  asio::steady_timer done(io, asio::steady_timer::time_point::max());
  std::optional<error_code> result;
  {
    Turns::Turn turn(turns_, io, /*tenant=*/"");
    co_await turn.await_turn();
    if (place.is_ended) co_return asio::error::operation_aborted;
    // Our answer, with its signature, is made before this returns.
    stream.begin_tls(asio::buffer(hello), [&](const error_code& fault, size_t) {
      result = fault;
      done.cancel();
    });
  }
  error_code ignored;
  while (!result) co_await done.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  co_return *result;
}

}  // namespace strata::server
