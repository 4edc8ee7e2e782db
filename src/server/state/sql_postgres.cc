// PostgreSQL behind Sql. A connection that was lost between transactions is opened again once; one
// lost inside a transaction fails it. The only place that includes libpq.
#include <fmt/format.h>
#include <libpq-fe.h>

#include <charconv>
#include <chrono>
#include <thread>

#include "base/check.h"
#include "base/error.h"
#include "server/state/sql.h"

namespace strata::server {
namespace {

// Any fixed number: advisory locks of one database share one space.
constexpr const char* kLock = "SELECT pg_try_advisory_lock(7881320498172411)";
constexpr int kLockAttempts = 20;
constexpr std::chrono::milliseconds kLockPause(50);

constexpr Oid kBytea = 17;
constexpr Oid kInt8 = 20;
constexpr Oid kInt4 = 23;
constexpr Oid kFloat8 = 701;

struct Clear {
  void operator()(PGresult* result) const { PQclear(result); }
};
using Reply = std::unique_ptr<PGresult, Clear>;

std::string one_line(const char* message) {
  std::string text(message);
  for (char& c : text) c = c == '\n' ? ' ' : c;
  while (text.ends_with(' ')) text.pop_back();
  return text;
}

// "a = ? AND b = ?" to "a = $1 AND b = $2"; our statements hold no ? inside quotes.
std::string numbered(std::string_view statement) {
  std::string out;
  int count = 0;
  for (const char c : statement) {
    out += c == '?' ? fmt::format("${}", ++count) : std::string(1, c);
  }
  return out;
}

class Postgres final : public Sql {
 public:
  explicit Postgres(const std::string& url) : connection_(PQconnectdb(url.c_str())) {
    try {
      prepare_connection();
    } catch (...) {
      PQfinish(connection_);
      throw;
    }
  }
  ~Postgres() override { PQfinish(connection_); }
  Postgres(const Postgres&) = delete;
  Postgres& operator=(const Postgres&) = delete;

  SqlResult run(std::string_view statement, std::span<const SqlValue> parameters) override {
    Reply reply = execute(statement, parameters);
    if (PQstatus(connection_) == CONNECTION_BAD && !in_transaction_) {
      reconnect();
      reply = execute(statement, parameters);
    }
    const ExecStatusType status = PQresultStatus(reply.get());
    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK) fail(statement);
    SqlResult result;
    const int rows = PQntuples(reply.get());
    const int columns = PQnfields(reply.get());
    for (int row = 0; row < rows; ++row) {
      SqlRow values;
      for (int column = 0; column < columns; ++column) {
        values.push_back(value(reply.get(), row, column));
      }
      result.rows.push_back(std::move(values));
    }
    const std::string_view changed = PQcmdTuples(reply.get());
    if (columns == 0 && !changed.empty()) {
      std::from_chars(changed.data(), changed.data() + changed.size(), result.changed);
    }
    return result;
  }

  void begin(Durability durability) override {
    run("BEGIN", {});
    in_transaction_ = true;
    try {
      if (durability == Durability::kRelaxed) run("SET LOCAL synchronous_commit = off", {});
    } catch (...) {
      rollback();
      throw;
    }
  }
  void commit() override {
    // A COMMIT of a failed transaction answers ROLLBACK and no error.
    const bool broken = PQtransactionStatus(connection_) == PQTRANS_INERROR;
    run("COMMIT", {});
    in_transaction_ = false;
    CHECK(!broken, "a failed transaction was committed");
  }
  void sync() override {}  // COMMIT has waited for it
  void rollback() noexcept override {
    if (!in_transaction_) return;
    PQclear(PQexec(connection_, "ROLLBACK"));
    in_transaction_ = false;
  }

 private:
  [[noreturn]] void fail(std::string_view statement) {
    throw Error(ErrorCode::kIo, fmt::format("postgresql: {}: {}", statement_name(statement),
                                            one_line(PQerrorMessage(connection_))));
  }

  // The lock belongs to the connection, so it ends with this process.
  void prepare_connection() {
    if (PQstatus(connection_) != CONNECTION_OK) fail("connect");
    PQsetNoticeProcessor(connection_, [](void*, const char*) {}, nullptr);
    PQclear(PQexec(connection_, "SET client_encoding = 'UTF8'"));
    PQclear(PQexec(connection_, "SET extra_float_digits = 1"));
    take_lock();
  }

  // PostgreSQL takes a moment to notice that the connection which held the lock has ended: ours
  // before it was lost, or that of the server before us.
  void take_lock() {
    for (int attempt = 0; attempt < kLockAttempts; ++attempt) {
      if (attempt > 0) std::this_thread::sleep_for(kLockPause);
      const Reply lock(PQexec(connection_, kLock));
      if (PQresultStatus(lock.get()) != PGRES_TUPLES_OK) fail("lock");
      if (std::string_view(PQgetvalue(lock.get(), 0, 0)) == "t") return;
    }
    throw Error(ErrorCode::kInvalidArgument,
                "--db: another strata serve uses this database; give each its own");
  }

  void reconnect() {
    PQreset(connection_);
    prepare_connection();
  }

  Reply execute(std::string_view statement, std::span<const SqlValue> parameters) {
    std::vector<std::string> texts(parameters.size());
    std::vector<const char*> values;
    std::vector<int> lengths;
    std::vector<int> formats;
    for (size_t i = 0; i < parameters.size(); ++i) {
      const SqlValue& parameter = parameters[i];
      bool is_binary = false;
      if (const auto* number = std::get_if<int64_t>(&parameter)) {
        texts[i] = std::to_string(*number);
      } else if (const auto* real = std::get_if<double>(&parameter)) {
        texts[i] = fmt::format("{}", *real);
      } else if (const auto* text = std::get_if<std::string>(&parameter)) {
        texts[i] = *text;
      } else if (const auto* blob = std::get_if<Blob>(&parameter)) {
        texts[i] = blob->bytes;
        is_binary = true;
      }
      values.push_back(parameter.index() == 0 ? nullptr : texts[i].data());
      lengths.push_back(static_cast<int>(texts[i].size()));
      formats.push_back(is_binary ? 1 : 0);
    }
    return Reply(PQexecParams(connection_, numbered(statement).c_str(),
                              static_cast<int>(parameters.size()), nullptr, values.data(),
                              lengths.data(), formats.data(), 0));
  }

  static SqlValue value(const PGresult* reply, int row, int column) {
    if (PQgetisnull(reply, row, column) != 0) return std::monostate{};
    const char* data = PQgetvalue(reply, row, column);
    const std::string_view text(data, static_cast<size_t>(PQgetlength(reply, row, column)));
    const Oid type = PQftype(reply, column);
    if (type == kInt8 || type == kInt4) {
      int64_t number = 0;
      std::from_chars(text.data(), text.data() + text.size(), number);
      return number;
    }
    if (type == kFloat8) {
      double number = 0;
      std::from_chars(text.data(), text.data() + text.size(), number);
      return number;
    }
    if (type == kBytea) {
      size_t size = 0;
      unsigned char* bytes = PQunescapeBytea(reinterpret_cast<const unsigned char*>(data), &size);
      Blob blob{std::string(reinterpret_cast<const char*>(bytes), size)};
      PQfreemem(bytes);
      return blob;
    }
    return std::string(text);
  }

  PGconn* connection_;
  bool in_transaction_ = false;
};

}  // namespace

std::unique_ptr<Sql> open_postgres(const std::string& url) {
  return std::make_unique<Postgres>(url);
}

}  // namespace strata::server
