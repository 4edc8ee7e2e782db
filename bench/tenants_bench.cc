// SPDX-License-Identifier: Apache-2.0
// What batching across tenants is worth: 8 tenants at once against the same work one tenant after
// the other, each pipelining its own requests, through scheduler and engine; pairs of the two
// interleaved, and the median of the pairs' ratios. Training: a pass is forward_backward of one
// datum of n tokens, a step is that and optim_step, which no other tenant's work can share.
// Predicted for n tokens: 8 max(R, n) / max(R, 8 n), where R is the number of tokens at which a
// pass turns from streaming weights to computing, from the limits probed in the same process.
// Sampling: one row for each tenant, each with an adapter of its own.
//   strata init --config smollm2-135m --dtype bf16 --out DIR   (or the real weights)
//   tenants_bench DIR [rank] [pairs] [tokens: 0 is sampling; else all]
#include <fmt/format.h>

#include <cstdlib>

#include "base/clock.h"
#include "bench/limit_share.h"
#include "engine/work_runner.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/limits.h"
#include "scheduler/scheduler.h"

namespace strata {
namespace {

constexpr int kTenants = 8;

class Bench {
 public:
  Bench(const std::string& dir, int64_t rank) {
    auto backend = std::make_unique<CpuBackend>(choose_cpu_path(), 0);
    auto model = model::load_model(*backend, dir, {.compute_dtype = DType::kBF16});
    engine_ = std::make_unique<engine::Engine>(std::move(backend), std::move(model),
                                               engine::EngineOptions{});
    passes_ = std::make_unique<engine::Runner>(*engine_);
    runner_ =
        std::make_unique<engine::WorkRunner>(*passes_, nullptr, book_, engine::RunnerOptions{});
    for (int t = 0; t < kTenants; ++t) {
      api::Command create = command(t, api::CreateModel{.lora = {.rank = rank, .seed = 1}});
      create.seq_id = 0;
      --seq_[t];
      submit(create);
      submit(command(t, api::SaveForSampler{.snapshot = {snapshot(t)}, .ephemeral = true}));
    }
    run();
  }

  [[nodiscard]] engine::Engine& engine() { return *engine_; }

  // Seconds for a pass of n tokens of every tenant, or for `steps` training steps.
  double train(int64_t n, int steps, bool together) {
    return measure(together, [&](int tenant) {
      for (int step = 0; step < std::max(steps, 1); ++step) {
        api::ForwardBackward pass;
        api::Datum& datum = pass.data.emplace_back();
        for (int64_t i = 0; i < n; ++i) {
          datum.tokens.push_back(static_cast<int32_t>(100 + 31 * i + tenant));
          datum.targets.push_back(static_cast<int32_t>(200 + 17 * i + tenant));
          datum.inputs[api::LossInput::kWeights].push_back(1.0f);
        }
        submit(command(tenant, std::move(pass)));
        if (steps > 0) submit(command(tenant, api::OptimStep{.adamw = {.lr = 1e-5}}));
      }
    });
  }

  double sample(int64_t tokens, bool together) {
    return measure(together, [&](int tenant) {
      api::Sample sample;
      sample.snapshot = {snapshot(tenant)};
      for (int i = 0; i < 16; ++i) sample.prompt.push_back(300 + 7 * i + tenant);
      sample.max_tokens = tokens;
      api::Command out = command(tenant, std::move(sample));
      out.seq_id = 0;
      --seq_[tenant];
      submit(out);
    });
  }

 private:
  static std::string snapshot(int tenant) { return "s" + std::to_string(tenant); }

  api::Command command(int tenant, api::Operation op) {
    const std::string name = "t" + std::to_string(tenant);
    return {.request = {std::to_string(next_request_++)},
            .tenant = {name},
            .session = {name},
            .model = {name},
            .seq_id = ++seq_[tenant],
            .op = std::move(op)};
  }
  void submit(api::Command command) {
    CHECK(scheduler_.submit(std::move(command), 0.0) == api::Admission::kAccepted);
  }
  void run() {
    while (!scheduler_.idle()) {
      const api::Capacity capacity = runner_->capacity();
      const api::Work work = scheduler_.next({&capacity, 1}, 0.0);
      for (const api::Result& result : scheduler_.complete(runner_->run(work), 0.0)) {
        const auto* failure = std::get_if<api::Failure>(&result.outcome);
        CHECK(failure == nullptr, failure->message);
      }
    }
  }
  template <typename Submit>
  double measure(bool together, Submit submit_tenant) {
    const double begin = now_seconds();
    for (int tenant = 0; tenant < kTenants; ++tenant) {
      submit_tenant(tenant);
      if (!together) run();
    }
    run();
    return now_seconds() - begin;
  }

  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<engine::Runner> passes_;
  engine::AdapterBook book_{{}};
  std::unique_ptr<engine::WorkRunner> runner_;
  scheduler::Scheduler scheduler_{{}};
  int64_t next_request_ = 0;
  int64_t seq_[kTenants] = {};
};

struct Ratio {
  double alone = 0.0, together = 0.0;  // seconds, medians
  double ratio = 0.0;                  // median of the pairs
  double busy_others = 0.0;            // share of the time that other processes took of the cores
};

template <typename Run>
Ratio pairs(int count, Run run) {
  run(true);  // warm
  std::vector<double> alone, together, ratios;
  const double others = others_busy_seconds();
  const double begin = now_seconds();
  for (int i = 0; i < count; ++i) {
    alone.push_back(run(false));
    together.push_back(run(true));
    ratios.push_back(alone.back() / together.back());
  }
  return {.alone = median(alone),
          .together = median(together),
          .ratio = median(ratios),
          .busy_others = (others_busy_seconds() - others) / (now_seconds() - begin)};
}

void report(const std::string& name, const Ratio& r, double predicted) {
  fmt::print("{:<22} {:8.3f} s {:8.3f} s {:6.2f}x", name, r.alone, r.together, r.ratio);
  if (predicted > 0.0) {
    fmt::print("  predicted {:5.2f}x: {:3.0f} %", predicted, 100.0 * r.ratio / predicted);
  }
  fmt::print("  (others {:.0f} % of a core)\n", 100.0 * r.busy_others);
  std::fflush(stdout);
}

void run_bench(const std::string& dir, int64_t rank, int count, int64_t only) {
  Bench bench(dir, rank);
  ops::LimitProbe probe(bench.engine().backend());
  const double flops = probe.measure_matrix_flops(DType::kBF16);
  const double bytes = probe.measure_read_bandwidth();
  // A pass streams 2 bytes of each weight and computes 2 FLOP with it for each token.
  const double turn = flops / bytes;
  fmt::print(
      "{} tenants, rank {}, bf16, {} threads; {:.0f} GFLOP/s, {:.1f} GB/s, R = {:.1f} tokens\n",
      kTenants, rank, bench.engine().backend().parallelism(), flops * 1e-9, bytes * 1e-9, turn);
  fmt::print("{:<22} {:>10} {:>10} {:>7}\n", "", "in turn", "together", "ratio");
  if (only <= 0)
    report("sampling, 32 tokens", pairs(count, [&](bool all) { return bench.sample(32, all); }),
           0.0);
  for (const int64_t n : {2, 4, 16, 64, 256}) {
    if (only >= 0 && n != only) continue;
    const auto tokens = static_cast<double>(n);
    const double predicted = kTenants * std::max(turn, tokens) / std::max(turn, kTenants * tokens);
    const int steps = n <= 16 ? 4 : 1;
    // A pass is short, so there are more pairs of it.
    report(fmt::format("pass, {} tokens", n),
           pairs(steps * count, [&](bool all) { return bench.train(n, 0, all); }), predicted);
    report(fmt::format("steps, {} tokens", n),
           pairs(count, [&](bool all) { return bench.train(n, steps, all); }), predicted);
  }
}

}  // namespace
}  // namespace strata

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: tenants_bench MODEL_DIR [rank] [pairs] [tokens]\n");
    return 2;
  }
  strata::run_bench(argv[1], argc > 2 ? std::atoi(argv[2]) : 8, argc > 3 ? std::atoi(argv[3]) : 5,
                    argc > 4 ? std::atoi(argv[4]) : -1);
  return 0;
}
