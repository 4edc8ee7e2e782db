// SPDX-License-Identifier: Apache-2.0
// PostgreSQL behind Sql. A connection that was lost between transactions is opened again; one lost
// inside a transaction fails it. Nothing waits for long: a statement has five seconds or its
// caller's deadline, and while the database is away each call without one looks for it for a moment
// and fails.
#include <dlfcn.h>
#include <fmt/format.h>
#include <libpq-fe.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "server/store/state/sql.h"
#include "server/store/state/store_lists.h"

// One list of names, for the fields and for opening.
// clang-format off
#define STRATA_LIBPQ(X)                                                                          \
  X(PQclear) X(PQcmdTuples) X(PQconnectPoll) X(PQconnectStart) X(PQconsumeInput)                 \
  X(PQenterPipelineMode) X(PQerrorMessage) X(PQexitPipelineMode) X(PQfinish) X(PQflush)          \
  X(PQfreemem) X(PQftype) X(PQgetResult) X(PQgetisnull) X(PQgetlength) X(PQgetvalue)             \
  X(PQisBusy) X(PQnfields) X(PQntuples) X(PQpipelineSync) X(PQresetPoll) X(PQresetStart)         \
  X(PQresultErrorField) X(PQresultErrorMessage) X(PQresultStatus) X(PQsendQueryParams)           \
  X(PQsetNoticeProcessor) X(PQsetnonblocking) X(PQsocket) X(PQstatus) X(PQtransactionStatus)     \
  X(PQunescapeBytea)
// clang-format on

namespace strata::server {
namespace {

struct Libpq {
#define STRATA_LIBPQ_FIELD(name) decltype(&::name) name;
  STRATA_LIBPQ(STRATA_LIBPQ_FIELD)
#undef STRATA_LIBPQ_FIELD
};

[[noreturn]] void fail_without_libpq() {
  const char* why = ::dlerror();
  throw Error(ErrorCode::kUnsupported,
              fmt::format("--db: PostgreSQL's client library could not be opened ({}); install it "
                          "(on Debian: apt-get install libpq5), or leave --db out: state is then "
                          "in a SQLite file in --data",
                          why == nullptr ? "libpq.so.5" : why));
}

Libpq open_libpq() {
  void* library = ::dlopen("libpq.so.5", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) fail_without_libpq();
  Libpq found{};
  const auto find = [library](const char* name) {
    void* symbol = ::dlsym(library, name);
    if (symbol == nullptr) fail_without_libpq();
    return symbol;
  };
#define STRATA_LIBPQ_OPEN(name) found.name = reinterpret_cast<decltype(&::name)>(find(#name));
  STRATA_LIBPQ(STRATA_LIBPQ_OPEN)
#undef STRATA_LIBPQ_OPEN
  return found;
}

// The library is opened on the first call, when a PostgreSQL database is named: the program starts
// without it. Error{kUnsupported} when it is not installed.
const Libpq& libpq() {
  static const Libpq opened = open_libpq();
  return opened;
}

// Any fixed number: advisory locks of one database share one space.
constexpr const char* kLock = "SELECT pg_try_advisory_lock(7881320498172411)";
constexpr std::chrono::milliseconds kLockPause(50);
constexpr double kFirstConnect = 15.0;  // s, at the start
constexpr double kReconnect = 0.25;     // s that a call may spend on finding the database again
constexpr double kRetry = 1.0;          // s between attempts that the database refuses
constexpr double kStatement = 5.0;      // s
constexpr int kRoundTrips = 5;          // that are measured, at the start
constexpr double kFar = 0.005;          // s there and back that the log tells of
constexpr double kFarthest = 0.05;      // s that are taken for the way
constexpr double kHurried = 2.0;        // s, of a server that stops
constexpr double kLook = 0.1;           // s between two looks whether it does

constexpr std::string_view kUniqueViolation = "23505";  // of SQLSTATE

constexpr Oid kBytea = 17;
constexpr Oid kInt8 = 20;
constexpr Oid kInt4 = 23;
constexpr Oid kFloat8 = 701;

struct Clear {
  void operator()(PGresult* result) const { libpq().PQclear(result); }
};
using Reply = std::unique_ptr<PGresult, Clear>;

std::string one_line(const char* message) {
  std::string text(message);
  for (char& c : text) c = c == '\n' ? ' ' : c;
  while (text.ends_with(' ')) text.pop_back();
  return text;
}

// "a = ? AND b = ?" to "a = $1 AND b = $2"; our statements hold no ? inside quotes.
std::string with_numbered_parameters(std::string_view statement) {
  std::string out;
  int count = 0;
  for (const char c : statement) {
    out += c == '?' ? fmt::format("${}", ++count) : std::string(1, c);
  }
  return out;
}

// As libpq takes it: bytes as they are, all else in words.
std::string parameter_text(const SqlValue& parameter) {
  if (const auto* number = std::get_if<int64_t>(&parameter)) return std::to_string(*number);
  if (const auto* real = std::get_if<double>(&parameter)) return fmt::format("{}", *real);
  if (const auto* text = std::get_if<std::string>(&parameter)) return *text;
  if (const auto* blob = std::get_if<Blob>(&parameter)) return blob->bytes;
  return {};
}

// 0 where it is none.
template <typename Number>
Number parse_number_or_0(std::string_view text) {
  Number number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

class Postgres final : public Sql {
 public:
  enum class Use { kServer, kReader };  // of a database: its one server, or a reader of that one's
  Postgres(const std::string& url, Use use)
      : use_(use), connection_(libpq().PQconnectStart(url.c_str())) {
    try {
      const double deadline = now_seconds() + kFirstConnect;
      if (!finish_connecting(deadline, libpq().PQconnectPoll)) fail("connect");
      prepare_connection();
      if (!try_lock_until(deadline)) {
        throw Error(ErrorCode::kInvalidArgument,
                    "--db: another strata serve uses this database; give each its own");
      }
      is_ready_ = true;
      measure_round_trip();
      warn_of_latency();
    } catch (...) {
      libpq().PQfinish(connection_);
      throw;
    }
  }
  ~Postgres() override { libpq().PQfinish(connection_); }
  Postgres(const Postgres&) = delete;
  Postgres& operator=(const Postgres&) = delete;

  SqlResult run(std::string_view statement, std::span<const SqlValue> parameters) override {
    const bool may_repeat = !in_transaction_ || !opening_.empty();
    if (!is_ready_ && !may_repeat) fail(statement);
    if (!is_ready_) reconnect();
    Reply reply = execute(statement, parameters, opening_);
    if (libpq().PQstatus(connection_) == CONNECTION_BAD) {
      is_ready_ = false;
      if (may_repeat) {
        reconnect();
        reply = execute(statement, parameters, opening_);
      }
    }
    opening_.clear();
    if (!is_good(reply)) fail_of(reply, statement);
    return result_of(reply);
  }

  // Sent with the transaction's first statement: one way there and back for all of them.
  void begin(Durability durability) override {
    opening_ = {"BEGIN"};
    if (durability == Durability::kRelaxed)
      opening_.emplace_back("SET LOCAL synchronous_commit = off");
    is_unhurried_ = durability == Durability::kUnhurried;
    if (is_unhurried_) opening_.emplace_back("SET LOCAL statement_timeout = 0");
    in_transaction_ = true;
  }
  void commit() override {
    // A COMMIT of a failed transaction answers ROLLBACK and no error.
    const bool broken = libpq().PQtransactionStatus(connection_) == PQTRANS_INERROR;
    if (std::exchange(opening_, {}).empty()) run("COMMIT", {});
    in_transaction_ = is_unhurried_ = false;
    CHECK(!broken, "a failed transaction was committed");
  }
  void sync() override {}  // COMMIT has waited for it
  [[nodiscard]] bool may_hang() const override { return true; }
  [[nodiscard]] bool is_away() const override { return !is_ready_; }
  [[nodiscard]] double usual_seconds() const override { return usual_; }
  void set_deadline(double when) override { deadline_ = when; }
  void hurry() override { hurried_at_ = now_seconds(); }
  void rollback() noexcept override {
    if (!in_transaction_) return;
    in_transaction_ = is_unhurried_ = false;
    if (!std::exchange(opening_, {}).empty()) return;
    try {
      if (is_ready_ && libpq().PQstatus(connection_) == CONNECTION_OK) execute("ROLLBACK");
    } catch (const Error&) {  // the connection is lost, and the transaction with it
    }
  }

 private:
  // `why` is the result's message; empty without a result: the connection's.
  [[noreturn]] void fail(std::string_view statement, const char* why = "") {
    throw StoreError(fmt::format("postgresql: {}: {}", statement_name(statement),
                                 one_line(*why == 0 ? libpq().PQerrorMessage(connection_) : why)));
  }

  [[noreturn]] void fail_of(const Reply& reply, std::string_view statement) {
    const char* state = libpq().PQresultErrorField(reply.get(), PG_DIAG_SQLSTATE);
    if (state != nullptr && state == kUniqueViolation) throw NotUnique(not_unique_text(statement));
    fail(statement, libpq().PQresultErrorMessage(reply.get()));
  }

  static bool is_good(const Reply& reply) {
    const ExecStatusType status = libpq().PQresultStatus(reply.get());
    return status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK;
  }

  void prepare_connection() {
    libpq().PQsetNoticeProcessor(connection_, [](void*, const char*) {}, nullptr);
    libpq().PQsetnonblocking(connection_, 1);
    for (const char* setting : {"SET client_encoding = 'UTF8'", "SET extra_float_digits = 1",
                                "SET statement_timeout = '5s'", "SET lock_timeout = '5s'"})
      set(setting);
    if (use_ == Use::kReader) set("SET default_transaction_read_only = on");
  }

  void set(const char* setting) {
    if (!is_good(execute(setting))) fail(setting);
  }

  // The shortest of a few, since a busy machine makes some longer.
  void measure_round_trip() {
    double least = kFarthest;
    for (int i = 0; i < kRoundTrips; ++i) {
      const double begin = now_seconds();
      execute("SELECT 1");
      least = std::min(least, now_seconds() - begin);
    }
    way_ = least;
  }

  // Warns where the database is so far away that requests wait for it.
  void warn_of_latency() const {
    if (use_ == Use::kReader || way_ < kFar) return;
    log(LogLevel::kWarning,
        fmt::format("--db: {:.0f} ms to the database and back; a request that writes waits for "
                    "several, and others for it: a database nearer by answers sooner",
                    way_ * 1e3));
  }

  // That of a server; it belongs to the connection, so it ends with this process. PostgreSQL takes
  // a moment to notice that the connection which held the lock has ended: ours before it was lost,
  // or that of the server before us.
  bool try_lock_until(double deadline) {
    if (use_ == Use::kReader) return true;
    for (;;) {
      const Reply lock = execute(kLock);
      if (libpq().PQresultStatus(lock.get()) != PGRES_TUPLES_OK) fail("lock");
      if (std::string_view(libpq().PQgetvalue(lock.get(), 0, 0)) == "t") return true;
      if (now_seconds() > deadline) return false;
      std::this_thread::sleep_for(kLockPause);
    }
  }

  // True when the socket is ready, false at the deadline.
  bool wait_socket(bool for_writing, double deadline) const {
    const double left = deadline - now_seconds();
    if (left <= 0) return false;
    pollfd waiting = {.fd = libpq().PQsocket(connection_),
                      .events = static_cast<int16_t>(for_writing ? POLLOUT | POLLIN : POLLIN),
                      .revents = 0};
    return waiting.fd < 0 || ::poll(&waiting, 1, static_cast<int>(left * 1e3) + 1) != 0;
  }

  // The same, of an answer: whoever stops the server may bring the deadline nearer.
  bool wait_for_answer(bool for_writing, double deadline) const {
    for (;;) {
      const double end = std::min(deadline, std::max(begun_at_, hurried_at_.load()) + kHurried);
      const double now = now_seconds();
      if (wait_socket(for_writing, std::min(end, now + kLook))) return true;
      if (now_seconds() >= end) return false;
    }
  }

  // False at the deadline: the next call goes on. An Error when the database refuses.
  bool finish_connecting(double deadline, PostgresPollingStatusType (*step)(PGconn*)) {
    if (libpq().PQstatus(connection_) == CONNECTION_BAD) fail("connect");
    auto wanted = PGRES_POLLING_WRITING;
    while (wait_socket(wanted == PGRES_POLLING_WRITING, deadline)) {
      wanted = step(connection_);
      if (wanted == PGRES_POLLING_OK) return true;
      if (wanted == PGRES_POLLING_FAILED) fail("connect");
    }
    return false;
  }

  void begin_reconnecting(double now) {
    if (now < next_attempt_) fail("the database is away");
    next_attempt_ = now + kRetry;
    if (libpq().PQresetStart(connection_) == 0) fail("connect");
    is_connecting_ = true;
    give_up_ = now + kStatement;
  }

  // The connection is lost. Looks for a moment, where the last call left off; an Error when it is
  // not there yet.
  void reconnect() {
    const double now = now_seconds();
    if (deadline_ != kNoDeadline || hurried_at_ != kNoDeadline) fail("the database is away");
    if (!is_connecting_) begin_reconnecting(now);
    try {
      if (!finish_connecting(now + kReconnect, libpq().PQresetPoll)) {
        is_connecting_ = now < give_up_;
        fail("the database is away");
      }
      is_connecting_ = false;  // where it fails from here on, it begins anew
      prepare_connection();
      if (!try_lock_until(now + kReconnect)) {
        is_connecting_ = now < give_up_;
        throw StoreError("postgresql: the lock of before is not free yet");
      }
      is_ready_ = true;
    } catch (...) {
      if (libpq().PQstatus(connection_) == CONNECTION_BAD) is_connecting_ = false;
      throw;
    }
  }

  // The answer; null where the connection was lost. `opening` is sent before it, at once: what
  // begins the transaction whose first statement this is.
  Reply execute(std::string_view statement, std::span<const SqlValue> parameters = {},
                std::span<const std::string> opening = {}) {
    usual_ += way_;
    begun_at_ = now_seconds();
    const double deadline =
        std::min(is_unhurried_ ? kNoDeadline : begun_at_ + kStatement, deadline_);
    if (opening.empty())
      return send(statement, parameters) ? wait_for_last_reply(deadline) : Reply();
    const bool is_sent = send_pipeline(opening, statement, parameters);
    Reply reply = is_sent ? wait_for_pipeline_reply(deadline) : Reply();
    libpq().PQexitPipelineMode(connection_);
    return reply;
  }

  bool send_pipeline(std::span<const std::string> opening, std::string_view statement,
                     std::span<const SqlValue> parameters) {
    bool is_sent = libpq().PQenterPipelineMode(connection_) == 1;
    for (const std::string& first : opening) is_sent = is_sent && send(first, {});
    return is_sent && send(statement, parameters) && libpq().PQpipelineSync(connection_) == 1;
  }

  bool send(std::string_view statement, std::span<const SqlValue> parameters) {
    std::vector<std::string> texts(parameters.size());
    std::vector<const char*> values;
    std::vector<int> lengths;
    std::vector<int> formats;
    for (size_t i = 0; i < parameters.size(); ++i) {
      const SqlValue& parameter = parameters[i];
      texts[i] = parameter_text(parameter);
      values.push_back(parameter.index() == 0 ? nullptr : texts[i].data());
      lengths.push_back(static_cast<int>(texts[i].size()));
      formats.push_back(std::holds_alternative<Blob>(parameter) ? 1 : 0);
    }
    return libpq().PQsendQueryParams(connection_, with_numbered_parameters(statement).c_str(),
                                     static_cast<int>(parameters.size()), nullptr, values.data(),
                                     lengths.data(), formats.data(), 0) == 1;
  }

  // The last result of what was sent.
  Reply wait_for_last_reply(double deadline) {
    Reply last;
    while (Reply next = wait_for_next_reply(deadline)) last = std::move(next);
    return last;
  }

  // The last result of several statements that were sent at once, or the first that failed.
  Reply wait_for_pipeline_reply(double deadline) {
    Reply last;
    while (libpq().PQstatus(connection_) == CONNECTION_OK) {
      Reply next = wait_for_next_reply(deadline);  // null between statements
      if (!next) continue;
      if (libpq().PQresultStatus(next.get()) == PGRES_PIPELINE_SYNC) return last;
      if (!last || is_good(last)) last = std::move(next);
    }
    return {};
  }

  // Null at the end of a statement's results, and where the connection was lost. A database that
  // does not answer in time, frozen or behind a dead network, is left: its connection is not used
  // again.
  Reply wait_for_next_reply(double deadline) {
    int unsent = libpq().PQflush(connection_);
    while (unsent == 1 || libpq().PQisBusy(connection_) == 1) {
      if (!wait_for_answer(unsent == 1, deadline)) {
        is_ready_ = false;
        throw StoreError("postgresql: no answer in time; the database is away");
      }
      if (libpq().PQconsumeInput(connection_) == 0) return Reply();
      if (unsent == 1) unsent = libpq().PQflush(connection_);
    }
    return Reply(libpq().PQgetResult(connection_));
  }

  static SqlResult result_of(const Reply& reply) {
    SqlResult result;
    const int rows = libpq().PQntuples(reply.get());
    const int columns = libpq().PQnfields(reply.get());
    for (int row = 0; row < rows; ++row) {
      SqlRow values;
      for (int column = 0; column < columns; ++column) {
        values.push_back(cell(reply.get(), row, column));
      }
      result.rows.push_back(std::move(values));
    }
    if (columns == 0) result.changed = parse_number_or_0<int64_t>(libpq().PQcmdTuples(reply.get()));
    return result;
  }

  static SqlValue cell(const PGresult* reply, int row, int column) {
    if (libpq().PQgetisnull(reply, row, column) != 0) return std::monostate{};
    const char* data = libpq().PQgetvalue(reply, row, column);
    const std::string_view text(data, static_cast<size_t>(libpq().PQgetlength(reply, row, column)));
    const Oid type = libpq().PQftype(reply, column);
    if (type == kInt8 || type == kInt4) return parse_number_or_0<int64_t>(text);
    if (type == kFloat8) return parse_number_or_0<double>(text);
    if (type == kBytea) return unescaped_bytes(data);
    return std::string(text);
  }

  static Blob unescaped_bytes(const char* data) {
    size_t size = 0;
    unsigned char* bytes =
        libpq().PQunescapeBytea(reinterpret_cast<const unsigned char*>(data), &size);
    if (bytes == nullptr) throw StoreError("postgresql: no memory for a value of bytes");
    Blob blob{std::string(reinterpret_cast<const char*>(bytes), size)};
    libpq().PQfreemem(bytes);
    return blob;
  }

  const Use use_;
  PGconn* connection_;
  bool in_transaction_ = false;
  bool is_unhurried_ = false;           // the transaction
  std::vector<std::string> opening_;    // of a transaction that has not sent a statement yet
  std::atomic<bool> is_ready_ = false;  // connected, set up, and a server's lock is ours
  double way_ = 0;                      // s there and back
  double usual_ = 0;                    // s, of all that was sent
  double deadline_ = kNoDeadline;
  double begun_at_ = 0;                           // now_seconds() of the statement
  std::atomic<double> hurried_at_ = kNoDeadline;  // when hurry() was called
  bool is_connecting_ = false;
  double next_attempt_ = 0, give_up_ = 0;  // now_seconds()
};

}  // namespace

std::unique_ptr<Sql> open_postgres(const std::string& url) {
  return std::make_unique<Postgres>(url, Postgres::Use::kServer);
}

std::unique_ptr<Sql> open_postgres_reader(const std::string& url) {
  return std::make_unique<Postgres>(url, Postgres::Use::kReader);
}

}  // namespace strata::server
