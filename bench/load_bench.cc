// SPDX-License-Identifier: Apache-2.0
// A server under load: 2,000 polls parked on futures that wait for a missing number, and every
// second 120 samples (16-token prompt, 4 new), 20 forward_backward (64 tokens), 20 optim_step, 20
// GETs and 20 heartbeats, each future polled until it is answered. Once, at a tenth of the time,
// one forward_backward of 4,096 tokens. Reports the heartbeats' latency (also while that pass ran),
// the server's resident memory at a fifth of the time and at its end, what was not answered, 429s,
// and its own CPU. tools/load.sh starts the server.
//   load_bench PORT SERVER_PID KEY MODEL_NAME SECONDS [bar]    bar: exit 1 outside the bars
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "bench/http_client.h"
#include "server/tinker/protocol/tinker.pb.h"

namespace strata {
namespace {

constexpr int kParked = 2000;
constexpr int kModels = 4;
constexpr double kStep = 0.05;  // seconds; a twentieth of each second's requests

double own_cpu() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double resident_mib(int pid) {
  std::ifstream file(fmt::format("/proc/{}/statm", pid));
  int64_t total = 0, resident = 0;
  file >> total >> resident;
  return static_cast<double>(resident * sysconf(_SC_PAGESIZE)) / (1 << 20);
}

double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  const auto last = static_cast<double>(values.size() - 1);
  return values[static_cast<size_t>(share * last + 0.5)];
}

// The value of a string field of a flat JSON object.
std::string field(std::string_view json, std::string_view name) {
  const size_t at = json.find(fmt::format("\"{}\":\"", name));
  if (at == std::string_view::npos) return {};
  const size_t begin = at + name.size() + 4;
  return std::string(json.substr(begin, json.find('"', begin) - begin));
}

template <typename T>
std::string packed(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::string pass_body(const std::string& model, int seq_id, int64_t tokens) {
  tinker_public::ForwardBackwardRequest out;
  out.set_model_id(model);
  out.set_seq_id(seq_id);
  out.set_loss_fn("cross_entropy");
  tinker_public::Datum& datum = *out.add_data();
  std::vector<int32_t> ids;
  std::vector<int64_t> targets;
  for (int64_t i = 0; i < tokens; ++i) {
    ids.push_back(static_cast<int32_t>(5 + i * 7 % 90));
    targets.push_back(5 + (i + 1) * 7 % 90);
  }
  datum.add_model_input()->mutable_encoded_text()->set_tokens(packed(ids));
  tinker_public::Tensor& target = (*datum.mutable_loss_fn_inputs())["target_tokens"];
  target.set_dense(packed(targets));
  target.set_dtype(tinker_public::DTYPE_INT64);
  tinker_public::Tensor& weight = (*datum.mutable_loss_fn_inputs())["weights"];
  weight.set_dense(packed(std::vector<float>(static_cast<size_t>(tokens), 1.0f)));
  weight.set_dtype(tinker_public::DTYPE_FLOAT32);
  return out.SerializeAsString();
}

struct Counts {
  int64_t sent = 0, accepted = 0, answered = 0, failed = 0, busy = 0, refused = 0, broken = 0;
};

class Load {
 public:
  Load(int port, int pid, std::string key, std::string model, double seconds)
      : client_(port),
        pid_(pid),
        key_(std::move(key)),
        base_(std::move(model)),
        seconds_(seconds) {}

  // Whether all bars were met.
  bool run() {
    set_up();
    const double cpu = own_cpu();
    const double begin = now_seconds();
    double early = 0.0;
    for (int step = 0; step * kStep < seconds_; ++step) {
      client_.run_until(begin + step * kStep);
      one_step(step);
      if (!big_sent_ && step * kStep > 0.1 * seconds_) send_big();
      if (early == 0.0 && step * kStep > 0.2 * seconds_) early = resident_mib(pid_);
    }
    client_.run_until(begin + seconds_);
    const double late = resident_mib(pid_);
    const double used = (own_cpu() - cpu) / (now_seconds() - begin);
    const double end = now_seconds() + 300.0;
    stopping_ = true;
    while (open_ > 0 && now_seconds() < end) {
      client_.run_until(now_seconds() + 0.1);
      for (const auto& retry : std::exchange(retries_, {})) retry();
    }
    return report(early, late, used);
  }

 private:
  void post(const std::string& path, std::string_view type, std::string_view body,
            HttpClient::Done done) {
    client_.send(http_request("POST", "/api/v1/" + path, key_, type, body), std::move(done));
  }
  void post_json(const std::string& path, std::string_view body, HttpClient::Done done) {
    post(path, "application/json", body, std::move(done));
  }
  // Waits for one answer; for setting up.
  std::string call(const std::string& path, std::string_view body) {
    std::optional<std::string> got;
    post_json(path, body, [&](int status, std::string_view text) {
      CHECK(status == 200, path, status, text);
      got = std::string(text);
    });
    while (!got) client_.run_until(now_seconds() + 0.01);
    return *got;
  }
  void set_up() {
    session_ =
        field(call("create_session", "{\"tags\":[],\"sdk_version\":\"0.38.0\"}"), "session_id");
    for (int m = 0; m < kModels + 2; ++m) {  // then one for the long pass, one for parked futures
      const std::string made =
          call("create_model",
               fmt::format("{{\"session_id\":\"{}\",\"model_seq_id\":{},\"base_model\":\"{}\","
                           "\"lora_config\":{{\"rank\":8,\"seed\":1}}}}",
                           session_, m, base_));
      models_.push_back(field(made, "model_id"));
      const std::string request = field(made, "request_id");
      while (call("retrieve_future", fmt::format("{{\"request_id\":\"{}\"}}", request))
                 .find("model_id") == std::string::npos) {
      }
    }
    sampler_ = field(call("create_sampling_session",
                          fmt::format("{{\"session_id\":\"{}\",\"sampling_session_seq_id\":0,"
                                      "\"base_model\":\"{}\"}}",
                                      session_, base_)),
                     "sampling_session_id");
    for (int i = 0; i < kParked; ++i) {
      const std::string held =
          call("optim_step", fmt::format("{{\"model_id\":\"{}\",\"seq_id\":{},\"adam_params\":{}}}",
                                         models_[kModels + 1], 2 + i, kAdam));
      park(field(held, "request_id"));
    }
  }
  void park(const std::string& id) {
    post_json("retrieve_future", fmt::format("{{\"request_id\":\"{}\"}}", id),
              [this, id](int status, std::string_view) {
                if (stopping_) return;
                ++parked_polls_[status];
                if (status == 408) park(id);
              });
  }
  void poll(const std::string& id, Counts& counts, const std::function<void()>& then) {
    post_json("retrieve_future", fmt::format("{{\"request_id\":\"{}\"}}", id),
              [this, id, &counts, then](int status, std::string_view body) {
                if (status == 408) return poll(id, counts, then);
                if (status == 429) {
                  ++counts.busy;
                  retries_.push_back([this, id, &counts, then] { poll(id, counts, then); });
                  return;
                }
                --open_;
                if (status == 200) {
                  ++counts.answered;
                  counts.failed += body.find("\"error\":") != std::string_view::npos ? 1 : 0;
                } else {
                  ++counts.broken;
                }
                if (then) then();
              });
  }
  // A request that makes a future, followed to its answer.
  void follow(const std::string& path, std::string_view type, const std::string& body,
              const std::function<void()>& then = {}) {
    Counts& counts = counts_[path];
    ++counts.sent;
    ++open_;
    post(path, type, body, [this, &counts, then](int status, std::string_view text) {
      if (status == 200) {
        ++counts.accepted;
        return poll(field(text, "request_id"), counts, then);
      }
      --open_;
      if (status == 429) {
        ++counts.busy;
      } else if (status == 0) {
        ++counts.broken;
      } else {
        ++counts.refused;
      }
    });
  }
  void one_step(int step) {
    for (const auto& retry : std::exchange(retries_, {})) retry();
    for (int i = 0; i < 6; ++i) sample();
    const auto m = static_cast<size_t>(step % kModels);
    follow("forward_backward", "application/x-protobuf", pass_body(models_[m], ++seq_[m], 64));
    follow("optim_step", "application/json",
           fmt::format("{{\"model_id\":\"{}\",\"seq_id\":{},\"adam_params\":{}}}", models_[m],
                       ++seq_[m], kAdam));
    Counts& gets = counts_["GET"];
    ++gets.sent;
    client_.send(http_request("GET", "/api/v1/training_runs?limit=5", key_, "", ""),
                 [&gets](int status, std::string_view) {
                   ++(status == 200 ? gets.answered : gets.refused);
                 });
    heartbeat();
  }
  void sample() {
    follow("asample", "application/json",
           fmt::format("{{\"sampling_session_id\":\"{}\",\"seq_id\":{},\"num_samples\":1,"
                       "\"prompt\":{{\"chunks\":[{{\"type\":\"encoded_text\",\"tokens\":[5,6,7,8,9,"
                       "10,11,12,13,14,15,16,17,18,19,20]}}]}},\"sampling_params\":{{"
                       "\"max_tokens\":4,\"stop\":[]}}}}",
                       sampler_, sample_seq_++));
  }
  void heartbeat() {
    Counts& counts = counts_["heartbeat"];
    ++counts.sent;
    const double begin = now_seconds();
    post_json("session_heartbeat", fmt::format("{{\"session_id\":\"{}\"}}", session_),
              [this, &counts, begin](int status, std::string_view) {
                ++(status == 200 ? counts.answered : counts.refused);
                const double ms = 1e3 * (now_seconds() - begin);
                beats_.push_back(ms);
                if (big_running_) beats_during_big_.push_back(ms);
              });
  }
  void send_big() {
    big_sent_ = big_running_ = true;
    big_begin_ = now_seconds();
    follow("forward_backward", "application/x-protobuf", pass_body(models_[kModels], 1, 4096),
           [this] {
             big_running_ = false;
             big_seconds_ = now_seconds() - big_begin_;
           });
  }

  bool report(double early, double late, double used) {
    bool good = open_ == 0;
    for (const auto& [name, c] : counts_) {
      fmt::print(
          "{:<17} sent {:>6}  accepted {:>6}  answered {:>6}  errors {}  429 {}  refused {}  "
          "broken {}\n",
          name, c.sent, c.accepted, c.answered, c.failed, c.busy, c.refused, c.broken);
      good = good && c.failed + c.refused + c.broken == 0;
      if (c.accepted > 0) good = good && c.accepted == c.answered;
    }
    fmt::print("parked polls {} of {} (ended with", client_.num_waiting(), kParked);
    for (const auto& [status, count] : parked_polls_) fmt::print(" {}: {}", status, count);
    const double p99 = percentile(beats_, 0.99);
    const double big = percentile(beats_during_big_, 0.99);
    fmt::print(
        ")\nheartbeat ms: p50 {:.1f}  p99 {:.1f}  max {:.1f}; while a 4,096-token pass ran "
        "({:.1f} s, {} beats): p99 {:.1f}\n",
        percentile(beats_, 0.5), p99, percentile(beats_, 1.0), big_seconds_,
        beats_during_big_.size(), big);
    const double growth = 100.0 * (late / early - 1.0);
    fmt::print("resident memory: {:.1f} MiB at a fifth, {:.1f} MiB at the end: {:+.2f} %\n", early,
               late, growth);
    fmt::print("own CPU: {:.2f} of a core; not answered: {}\n", used, open_);
    answered_ = good;
    return good && p99 < 100.0 && big < 100.0 && growth <= 2.0 && used < 0.3;
  }

 public:
  [[nodiscard]] bool answered() const { return answered_; }

 private:
  static constexpr const char* kAdam =
      "{\"learning_rate\":0.00001,\"beta1\":0.9,\"beta2\":0.95,\"eps\":1e-12}";
  HttpClient client_;
  int pid_;
  std::string key_, base_;
  double seconds_;
  std::string session_, sampler_;
  std::vector<std::string> models_;
  int seq_[kModels] = {};
  int64_t sample_seq_ = 0;
  int64_t open_ = 0;  // sent, neither refused nor answered
  bool big_sent_ = false, big_running_ = false, stopping_ = false, answered_ = false;
  double big_begin_ = 0.0, big_seconds_ = 0.0;
  std::map<std::string, Counts> counts_;
  std::vector<std::function<void()>> retries_;  // polls that found no place
  std::map<int, int64_t> parked_polls_;
  std::vector<double> beats_, beats_during_big_;
};

}  // namespace
}  // namespace strata

int main(int argc, char** argv) {
  if (argc < 6) {
    fmt::print(stderr, "usage: load_bench PORT SERVER_PID KEY MODEL_NAME SECONDS [bar]\n");
    return 2;
  }
  strata::Load load(std::atoi(argv[1]), std::atoi(argv[2]), argv[3], argv[4], std::atof(argv[5]));
  const bool met = load.run();
  const bool with_bars = argc > 6 && std::strcmp(argv[6], "bar") == 0;
  if (!load.answered()) fmt::print("load: not every request was answered well\n");
  if (with_bars && !met) fmt::print("load: a bar was missed\n");
  return load.answered() && (met || !with_bars) ? 0 : 1;
}
