// SPDX-License-Identifier: Apache-2.0
#include "server/tinker_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/ascii.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mutex.h"
#include "server/http/server.h"
#include "server/openai/openai_endpoint.h"
#include "server/openai/openai_error.h"
#include "server/part_options.h"
#include "server/reloads.h"
#include "server/store/checkpoints/data_dir.h"
#include "server/store/checkpoints/registry.h"
#include "server/store/state/store.h"
#include "server/tinker/audit.h"
#include "server/tinker/keys.h"
#include "server/tinker/operations/operations.h"
#include "server/tinker/parse_pool.h"
#include "server/tinker/rest/rest.h"
#include "server/tinker/service/service.h"
#include "server/tinker/view/page.h"
#include "server/tinker/view/scrapes.h"
#include "server/tinker/view/watch.h"

namespace strata::server {
namespace {

constexpr double kTickSeconds = 0.1;
constexpr double kQuietSeconds = 1.0;  // between two lines about refused logins
constexpr int kParseThreads = 2;
constexpr int kTextThreads = 2;         // of OpenAI's clients: a long chat delays no data
constexpr size_t kMostChanges = 256;    // of checkpoints, that wait for the disk, of a tenant
constexpr size_t kMostLists = 64;       // that wait to be read, of a tenant
constexpr size_t kMostArchives = 16;    // that wait to be packed, of a tenant
constexpr size_t kMostReads = 256;      // of files to send, that wait for the disk, of a tenant
constexpr size_t kMostSchemas = 16;     // that wait to be compiled, of a tenant
constexpr size_t kMostMerges = 4;       // that wait to be made, of a tenant
constexpr double kLastResponses = 2.0;  // seconds for answers to leave at a shutdown

double start_seconds() {
  check_clock(clock_seconds());
  return wall_seconds();
}

std::unique_ptr<Sql> open_store(const ServeOptions& options, const DataDir& data) {
  return options.db.empty() ? open_sqlite(data.database()) : open_postgres(options.db);
}

std::unique_ptr<Sql> open_reader(const ServeOptions& options, const DataDir& data) {
  return options.db.empty() ? open_sqlite_reader(data.database())
                            : open_postgres_reader(options.db);
}

void log_exchange(const Exchange& exchange) {
  // The path without its query; signed URLs carry their token there.
  log(LogLevel::kDebug,
      fmt::format("event=http method={} path={} status={} seconds={:.4f}", exchange.method,
                  percent_escaped(exchange.path), exchange.status, exchange.seconds));
}

// How jobs of tenants get to these threads.
auto poster(auto& threads) {
  return [&threads](const std::string& tenant, std::function<void()> job) {
    threads.post(tenant, std::move(job));
  };
}

// What a reload has read, and what is wrong with the rest.
struct Reread {
  std::shared_ptr<const KeyRing> ring;
  TlsContext context;
  std::string keys_fault, tls_fault;
};

Reread read_credentials(const KeySources& sources, const TlsFiles& tls) {
  Reread read;
  try {
    read.ring = std::make_shared<const KeyRing>(sources);
  } catch (const Error& error) {
    read.keys_fault = error.what();
  }
  try {
    if (!tls.empty()) read.context = load_tls_context(tls);
  } catch (const Error& error) {
    read.tls_fault = error.what();
  }
  return read;
}

}  // namespace

struct TinkerServer::State {
  State(const ServeOptions& serve_options, const BaseNames& base_names,
        const std::vector<api::BaseInfo>& bases, std::vector<std::optional<ServedText>> texts,
        const Budget& limits, Dispatch dispatch, std::function<EngineStats()> engine_stats,
        ModelMerger merger)
      : options(serve_options),
        budget(limits),
        keys(std::make_shared<KeyRing>(key_sources(options))),
        data(options.data, options.allow_loose_modes),
        store(register_database(open_store(options, data)), start_seconds(), data.fingerprint()),
        store_lists(register_database(open_reader(options, data))),
        registry(data, store,
                 {.max_disk = options.max_disk,
                  .accept_loss = options.accept_loss,
                  .max_history = options.max_history,
                  .keep_samplers = options.max_samplers_per_tenant / 2,
                  .archives = budget.archives}),
        signer(
            data.secret(), store, options.url_ttl,
            [this](const std::string& tenant) { return keys->has_tenant(tenant, wall_seconds()); }),
        usage(options.rates, options.quotas, store.read_usage_rows()),
        names(base_names),
        rest({store, store_lists, registry, signer, worker, lists, archives, reads, usage, merges,
              names, std::move(merger), operator_folders(options, data, names)}),
        stats(std::move(engine_stats)),
        service(service_options(options, budget, data, names, store.boot()),
                {store, registry, names, bases, watch, usage, poster(worker),
                 [this](std::function<void()> job) { http->post(std::move(job)); }, poster(parsing),
                 [this](auto& tenant, auto& name) { return keys->may_sample(tenant, name); },
                 [this](const auto&... asked) { openai.fit_sample(asked...); }},
                std::move(dispatch)),
        openai({service, names, bases, std::move(texts), static_cast<int64_t>(wall_seconds()),
                poster(texts_parsing), [this](auto job) { http->post(std::move(job)); }, &grammars,
                std::bind_front(&Worker::try_post, &schemas)}),
        page({service, watch, usage, budget, names, bases, stats}),
        audit(options.audit.empty() ? nullptr : std::make_unique<AuditLog>(options.audit)) {}

  std::unique_ptr<Sql> register_database(std::unique_ptr<Sql> database) {
    databases.push_back(database.get());
    return database;
  }
  // Tells those who divide by tenants how many the keys name; warns of limits that do not fit them.
  void update_num_tenants() {
    const std::vector<std::string> tenants = newest->tenants();
    budget.set_num_tenants(static_cast<int64_t>(tenants.size()));
    for (const std::string& warning : budget.warnings()) log(LogLevel::kWarning, warning);
    warn_of_limits_without_keys(tenants);
  }
  void warn_of_limits_without_keys(const std::vector<std::string>& tenants) const {
    for (const auto* limits : {&options.rates, &options.quotas}) {
      for (const UsageLimit& limit : *limits) {
        if (limit.tenant == "*" || std::ranges::count(tenants, limit.tenant) > 0) continue;
        log(LogLevel::kWarning,
            fmt::format("limit '{}': no key is of tenant '{}'", limit.text, limit.tenant));
      }
    }
  }
  void stop_threads() {
    parsing.stop();
    texts_parsing.stop();
    archives.stop();
    lists.stop();
    merges.stop();
    schemas.stop();
    reads.stop();
    worker.stop();
  }
  [[nodiscard]] std::optional<Caller> identify_caller(std::string_view key) const;
  void record_exchange(const Exchange& exchange);
  void tick();
  [[nodiscard]] Response not_ready_response();
  [[nodiscard]] Handler make_scrape_handler(std::function<Response()> make,
                                            std::function<Response()> late);
  [[nodiscard]] Reloads::Read make_reload_reader();
  void apply_reload(const Reread& read, bool wants_certificate);
  // Serves with a certificate that was read again; the old one stays where that failed.
  void apply_certificate(const Reread& read, bool is_wanted);
  bool apply_keys(const std::shared_ptr<const KeyRing>& read);
  void audit_exchange(const Exchange& exchange);
  void audit_refused_login(const Exchange& exchange);
  void audit_reload(const std::string& what);
  void make_http_server(Router router);
  void make_metrics_server(int port);
  void start_metrics_server();
  [[nodiscard]] std::string metrics_text();
  [[nodiscard]] Response scrape_metrics();
  [[nodiscard]] Response stale_metrics_response();

  ServeOptions options;
  Budget budget;
  std::shared_ptr<const KeyRing> keys;  // I/O thread, after start()
  // The reloads' thread has two rings: what `keys` is or will be soon, and what it was, which must
  // not end on the I/O thread.
  std::shared_ptr<const KeyRing> newest = keys;
  std::shared_ptr<const KeyRing> former;
  DataDir data;
  std::vector<Sql*> databases;  // those of the next two
  StateStore store;
  StoreLists store_lists;
  CheckpointRegistry registry;
  UrlSigner signer;
  // Stopped before `http` goes: their jobs end there.
  Worker worker{{.most_waiting = kMostChanges}};
  Worker lists{{.name = "list", .most_waiting = kMostLists, .drops_at_stop = true}};
  Worker archives{{.name = "archive", .most_waiting = kMostArchives, .drops_at_stop = true}};
  Worker schemas{{.name = "schema", .most_waiting = kMostSchemas, .drops_at_stop = true}};
  Worker merges{{.name = "merge", .most_waiting = kMostMerges, .drops_at_stop = true}};
  Worker reads{{.name = "download", .most_waiting = kMostReads, .drops_at_stop = true}};
  ParsePool parsing{kParseThreads};
  ParsePool texts_parsing{kTextThreads, "texts"};
  Usage usage;
  BaseNames names;
  Rest rest;
  std::function<EngineStats()> stats;
  structured::GrammarStore grammars{
      {.limits = {.seconds = options.schema_seconds}, .space = budget.grammars}};
  Watch watch;
  Service service;
  OpenAiEndpoint openai;
  LivePage page;
  std::unique_ptr<AuditLog> audit;  // null: none is wanted
  int64_t num_refused_logins = 0;   // I/O thread
  double told_of_logins = -kQuietSeconds;
  std::unique_ptr<HttpServer> http;
  Scrapes scrapes{[this](std::function<void()> task) { http->post(std::move(task)); }};
  Mutex text_mutex;
  std::string last_metrics GUARDED_BY(text_mutex);
  std::unique_ptr<HttpServer> metrics;  // asks `http`'s thread
  std::unique_ptr<Reloads> reloads;     // gives `http` what it read
};

// Counts all of them, with one line a second: what strangers send must not fill a disk.
void TinkerServer::State::audit_refused_login(const Exchange& exchange) {
  ++num_refused_logins;
  const double now = now_seconds();
  if (now - told_of_logins < kQuietSeconds) return;
  told_of_logins = now;
  audit->add({.time = wall_seconds(),
              .tenant = "",
              .key_id = "",
              .address = exchange.address,
              .action = "login refused",
              .object = fmt::format("{} since the start; the last: {} {}", num_refused_logins,
                                    exchange.method, percent_escaped(exchange.path)),
              .status = exchange.status});
}

// Whether a route hands out weights: an archive, signed URLs, or a file by one.
static bool hands_out_weights(std::string_view route) {
  return route.ends_with("/archive") || route.find("external_weights") != std::string_view::npos ||
         route.starts_with("/api/v1/files/");
}

// Written for those who have a key, or a URL that one of them signed.
void TinkerServer::State::audit_exchange(const Exchange& exchange) {
  if (!audit) return;
  if (exchange.status == 401) return audit_refused_login(exchange);
  const bool hands_out = hands_out_weights(exchange.route) && exchange.status < 400;
  if (!hands_out && (exchange.effect != Effect::kChanges || exchange.tenant.empty())) return;
  audit->add({.time = wall_seconds(),
              .tenant = exchange.tenant,
              .key_id = exchange.key_id,
              .address = exchange.address,
              .action = fmt::format("{} {}", exchange.method, exchange.route),
              .object = hands_out        ? percent_escaped(exchange.path)
                        : exchange.about ? *exchange.about
                                         : "",
              .status = exchange.status});
}

std::string TinkerServer::State::metrics_text() {
  const Watch::Rate rate = watch.rate();
  return watch.metrics().render_prometheus(
      stats(),
      {.pending = static_cast<int64_t>(service.futures().num_pending()),
       .parked = service.futures().num_parked(),
       .sessions = static_cast<int64_t>(service.sessions().size()),
       .models = static_cast<int64_t>(service.models().size()),
       .train_rate = rate.train,
       .sample_rate = rate.sample,
       .loop_lag = service.loop_lag(),
       .tick_age = scrapes.tick_age(now_seconds()),
       .budget = budget.bytes_by_use(),
       .grammars = grammars.counts(),
       .audit = audit ? audit->counts() : AuditLog::Counts()},
      usage);
}

std::optional<Caller> TinkerServer::State::identify_caller(std::string_view key) const {
  const std::optional<Identity> who = keys->identify(key);
  if (!who) return std::nullopt;
  return Caller{who->tenant, who->is_admin, who->scope, who->key_id,
                has_expired(*who, wall_seconds())};
}

void TinkerServer::State::record_exchange(const Exchange& exchange) {
  log_exchange(exchange);
  watch.metrics().record_exchange(exchange.route, exchange.status, exchange.seconds);
  audit_exchange(exchange);
}

void TinkerServer::State::tick() {
  scrapes.tick(now_seconds());
  service.tick(now_seconds());
  watch.record_stats(stats(), now_seconds());
}

void TinkerServer::State::make_http_server(Router router) {
  HttpOptions with = http_options(options, budget);
  with.put_in_form = rewrite_as_openai_error;
  with.read_aside = poster(reads);
  http = std::make_unique<HttpServer>(
      with, std::move(router), [this](std::string_view key) { return identify_caller(key); },
      [this](const Exchange& exchange) { record_exchange(exchange); },
      [this](const Request& request) { return service.charge_request(request); });
  http->call_every(kTickSeconds, [this] { tick(); });
}

Response TinkerServer::State::scrape_metrics() {
  std::string text = metrics_text();
  {
    const MutexLock lock(text_mutex);
    last_metrics = text;
  }
  return prometheus_response(std::move(text));
}

// What was known last, and for how long the I/O thread has not answered.
Response TinkerServer::State::stale_metrics_response() {
  static constexpr std::string_view kName = "strata_tick_age_seconds";
  const double age = scrapes.tick_age(now_seconds());
  std::string text;
  {
    const MutexLock lock(text_mutex);
    text = last_metrics;
  }
  if (text.empty()) text = fmt::format("# TYPE {0} gauge\n{0} 0\n", kName);
  set_gauge(text, kName, age);
  return prometheus_response(std::move(text));
}

Response TinkerServer::State::not_ready_response() {
  return Service::not_ready(
      fmt::format("the I/O thread has not answered for {:.1f} s", scrapes.tick_age(now_seconds())));
}

// Answers with what `make` makes on the I/O thread; where that one hangs, with `late`'s.
Handler TinkerServer::State::make_scrape_handler(std::function<Response()> make,
                                                 std::function<Response()> late) {
  return [this, make = std::move(make), late = std::move(late)](const Request&,
                                                                const Respond& respond) {
    scrapes.post_with_deadline(respond, make, late);
  };
}

void TinkerServer::State::make_metrics_server(int port) {
  Router router;
  const auto add = [&](const char* path, Handler handler) {
    router.add({"GET", path, BodyKind::kNone, std::move(handler), /*needs_key=*/false});
  };
  add("/metrics", make_scrape_handler([this] { return scrape_metrics(); },
                                      [this] { return stale_metrics_response(); }));
  add("/readyz", make_scrape_handler([this] { return service.readiness(); },
                                     [this] { return not_ready_response(); }));
  metrics = std::make_unique<HttpServer>(metrics_options(options, port), std::move(router),
                                         /*identify=*/nullptr);
  metrics->call_every(kTickSeconds, [this] { scrapes.answer_overdue(now_seconds()); });
}

// Where nobody named the port, another server's is no reason not to start.
void TinkerServer::State::start_metrics_server() {
  try {
    metrics->start();
  } catch (const Error& error) {
    if (options.names_metrics_listen) throw;
    make_metrics_server(0);
    metrics->start();
    log(LogLevel::kWarning,
        fmt::format("{}; /metrics is on port {} instead", error.what(), metrics->port()));
  }
}

TinkerServer::TinkerServer(const ServeOptions& options, const BaseNames& names,
                           const std::vector<api::BaseInfo>& bases,
                           std::vector<std::optional<ServedText>> texts, const Budget& budget,
                           Dispatch dispatch, std::function<EngineStats()> stats,
                           ModelMerger merger)
    : state_(std::make_unique<State>(options, names, bases, std::move(texts), budget,
                                     std::move(dispatch), std::move(stats), std::move(merger))) {
  State& s = *state_;
  for (const std::string& warning : s.keys->warnings()) log(LogLevel::kWarning, warning);
  Router router;
  add_operations(router, s.service);
  s.rest.add_routes(router);
  s.openai.add_routes(router);
  s.page.add_routes(router);
  s.make_http_server(std::move(router));
  s.make_metrics_server(s.options.metrics_listen.port);
  s.update_num_tenants();
  s.reloads = std::make_unique<Reloads>(s.make_reload_reader());
}

TinkerServer::~TinkerServer() { state_->stop_threads(); }

void TinkerServer::start() {
  state_->http->post([this] { state_->store.hurry_this_thread(); });
  state_->http->start();
  state_->start_metrics_server();
}

int TinkerServer::port() const { return state_->http->port(); }
int TinkerServer::metrics_port() const { return state_->metrics->port(); }

void TinkerServer::post(std::vector<api::Event> events) {
  if (events.empty()) return;
  auto shared = std::make_shared<std::vector<api::Event>>(std::move(events));
  state_->http->post([this, shared] { state_->service.post(std::move(*shared)); });
}

// What it needs is copied: a read that hangs may outlive the server.
Reloads::Read TinkerServer::State::make_reload_reader() {
  return [this, sources = key_sources(options), tls = TlsFiles{options.tls_cert, options.tls_key}] {
    const Reread read = read_credentials(sources, tls);
    return Reloads::Use([this, tls, read] { apply_reload(read, !tls.empty()); });
  };
}

void TinkerServer::State::apply_reload(const Reread& read, bool wants_certificate) {
  apply_certificate(read, wants_certificate);
  const bool is_used = read.ring && apply_keys(read.ring);
  audit_reload(is_used ? "keys: read again" : "keys: the old ones stay");
  if (!read.keys_fault.empty())
    log(LogLevel::kError, fmt::format("keys: the old ones stay: {}", read.keys_fault));
}

void TinkerServer::State::apply_certificate(const Reread& read, bool is_wanted) {
  if (read.context) http->use_tls(read.context);
  if (is_wanted)
    audit_reload(read.context ? "certificate: read again" : "certificate: the old one stays");
  if (read.context) log(LogLevel::kInfo, "certificate: read again");
  if (!read.tls_fault.empty())
    log(LogLevel::kError, fmt::format("certificate: the old one stays: {}", read.tls_fault));
}

void TinkerServer::State::audit_reload(const std::string& what) {
  if (!audit) return;
  audit->add({.time = wall_seconds(),
              .tenant = "",
              .key_id = "",
              .address = "",
              .action = "reload",
              .object = what,
              .status = 0});
}

// The reloads' thread: the I/O thread only takes what is ready, and lets go of nothing large.
// False: they look cut, and those of before stay.
bool TinkerServer::State::apply_keys(const std::shared_ptr<const KeyRing>& read) {
  int64_t lost = 0;
  try {
    lost = read->check_against(*newest);
  } catch (const Error& error) {
    log(LogLevel::kError, fmt::format("keys: the old ones stay: {}", error.what()));
    return false;
  }
  for (const std::string& warning : read->warnings()) log(LogLevel::kWarning, warning);
  former = std::exchange(newest, read);
  update_num_tenants();
  http->post([this, read] { keys = read; });
  log(LogLevel::kInfo,
      fmt::format("keys: read again: {} keys, {} of before are gone", read->num_keys(), lost));
  return true;
}

void TinkerServer::reload(std::function<void()> then) {
  if (state_->audit) state_->audit->reopen();
  state_->reloads->ask(std::move(then));
}

double TinkerServer::tick_age() const { return state_->scrapes.tick_age(now_seconds()); }

void TinkerServer::begin_shutdown() {
  state_->http->post([this] { state_->service.begin_shutdown(); });
}

void TinkerServer::stop() {
  state_->metrics->stop(0.0);
  for (Sql* database : state_->databases) database->hurry();
  state_->stop_threads();
  // Twice: results that were posted before may post their answers once more.
  state_->http->post([this] {
    state_->service.handle_all_posted();
    state_->http->post([this] { state_->service.fail_pending(); });
  });
  state_->http->stop(kLastResponses);
  try {
    state_->service.write_changed_usage();
  } catch (const Error& error) {
    log(LogLevel::kError, fmt::format("usage of the last seconds is lost: {}", error.what()));
  }
}

}  // namespace strata::server
