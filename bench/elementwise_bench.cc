// SPDX-License-Identifier: Apache-2.0
// Bandwidth of the ops that only move data, on Qwen3-0.6B's shapes with 2,048 tokens (those of
// gated delta nets on Qwen3.5's: 16 heads of 128), beside a plain read and a copy of large blocks.
// Bytes are what an op must read and write once.
//   build/release/bench/elementwise_bench --benchmark_filter=swiglu
#include <benchmark/benchmark.h>

#include <numeric>
#include <vector>

#include "backend/arena.h"
#include "backend/backend.h"
#include "ops/adamw.h"
#include "ops/causal_conv.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/delta_gates.h"
#include "ops/elementwise.h"
#include "ops/gated.h"
#include "ops/gated_norm.h"
#include "ops/log_softmax.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"

namespace strata::ops {
namespace {

constexpr DType kF32 = DType::kF32;
constexpr DType kBF16 = DType::kBF16;
constexpr int64_t kTokens = 2048;
constexpr int64_t kModel = 1024;
constexpr int64_t kFeedForward = 3072;
constexpr int64_t kVocab = 151936;

Backend& shared_backend() {
  static CpuBackend backend(choose_cpu_path(), 0);
  return backend;
}

// Values in a range where nothing saturates.
Tensor filled(DType dtype, const Shape& shape) {
  Tensor tensor(cpu_allocator(), dtype, shape);
  const TensorView view = tensor.view();
  for (int64_t i = 0; i < shape.num_elements(); ++i) {
    const float value = static_cast<float>(i * 7919 % 1000) / 250.0f - 2.0f;
    if (dtype == kF32) {
      view.f32()[i] = value;
    } else {
      view.bf16()[i] = to_bf16(value);
    }
  }
  return tensor;
}

template <typename Op>
void measure(benchmark::State& state, int64_t bytes, Op&& op) {
  for (auto _ : state) op(shared_backend());
  state.SetBytesProcessed(state.iterations() * bytes);
}

void read_f32(benchmark::State& state) {  // the probe: sums of a block far larger than the caches
  const Tensor x = filled(kF32, {1 << 26});
  measure(state, x.view().num_bytes(),
          [&](Backend& b) { benchmark::DoNotOptimize(sum_of_squares(b, x)); });
}
BENCHMARK(read_f32)->Unit(benchmark::kMillisecond)->UseRealTime();

void copy_f32_to_bf16(benchmark::State& state) {
  const Tensor x = filled(kF32, {1 << 24});
  const Tensor y = filled(kBF16, {1 << 24});
  measure(state, x.view().num_bytes() + y.view().num_bytes(), [&](Backend& b) { copy(b, x, y); });
}
BENCHMARK(copy_f32_to_bf16)->Unit(benchmark::kMillisecond)->UseRealTime();

void add_into_f32(benchmark::State& state) {
  const Tensor x = filled(kF32, {1 << 24});
  const Tensor y = filled(kF32, {1 << 24});
  measure(state, 3 * x.view().num_bytes(), [&](Backend& b) { add_into(b, x, y); });
}
BENCHMARK(add_into_f32)->Unit(benchmark::kMillisecond)->UseRealTime();

void scatter_add_f32(benchmark::State& state) {
  const Tensor x = filled(kF32, {kTokens, kModel});
  const Tensor y = filled(kF32, {kVocab, kModel});
  std::vector<int32_t> rows;
  for (int32_t t = 0; t < kTokens; ++t) rows.push_back(t * 7919 % kVocab);
  measure(state, 3 * x.view().num_bytes(), [&](Backend& b) { scatter_add(b, x, rows, y); });
}
BENCHMARK(scatter_add_f32)->Unit(benchmark::kMillisecond)->UseRealTime();

void rms_norm_bf16(benchmark::State& state) {
  const int64_t tokens = state.range(0);
  const Tensor x = filled(kBF16, {tokens, kModel});
  const Tensor y = filled(kBF16, {tokens, kModel});
  const Tensor w = filled(kF32, {kModel});
  measure(state, 2 * x.view().num_bytes(), [&](Backend& b) { rms_norm(b, {x, w, 1e-6f}, y, {}); });
}
BENCHMARK(rms_norm_bf16)->Arg(1)->Arg(kTokens)->Unit(benchmark::kMicrosecond)->UseRealTime();

void rms_norm_backward_f32(benchmark::State& state) {
  const Tensor x = filled(kF32, {kTokens, kModel});
  const Tensor d_y = filled(kF32, {kTokens, kModel});
  const Tensor d_x = filled(kF32, {kTokens, kModel});
  const Tensor w = filled(kF32, {kModel});
  const Tensor d_w = filled(kF32, {kModel});
  const bool trained = state.range(0) == 1;  // d_weight reads x and d_y once more
  measure(state, (trained ? 6 : 4) * x.view().num_bytes(), [&](Backend& b) {
    rms_norm_backward(b, {x, w, 1e-6f}, {}, d_y, d_x, trained ? d_w.view() : TensorView());
  });
}
BENCHMARK(rms_norm_backward_f32)->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond)->UseRealTime();

struct RopeTensors {
  explicit RopeTensors(int64_t tokens)
      : x(filled(kBF16, {tokens, 16, 128})),
        y(filled(kBF16, {tokens, 16, 128})),
        weight(filled(kF32, {128})),
        d_weight(filled(kF32, {128})),
        cos(filled(kF32, {tokens, 64})),
        sin(filled(kF32, {tokens, 64})),
        positions(static_cast<size_t>(tokens)) {
    std::iota(positions.begin(), positions.end(), 0);
  }
  [[nodiscard]] HeadNormRopeArgs args() const {
    return {.x = x, .weight = weight, .eps = 1e-6f, .positions = positions, .cos = cos, .sin = sin};
  }
  Tensor x, y, weight, d_weight, cos, sin;
  std::vector<int32_t> positions;
};

void head_norm_rope_bf16(benchmark::State& state) {
  const RopeTensors t(state.range(0));
  measure(state, 2 * t.x.view().num_bytes(), [&](Backend& b) { head_norm_rope(b, t.args(), t.y); });
}
BENCHMARK(head_norm_rope_bf16)->Arg(1)->Arg(kTokens)->Unit(benchmark::kMicrosecond)->UseRealTime();

void head_norm_rope_backward_bf16(benchmark::State& state) {
  const RopeTensors t(kTokens);
  const Tensor d_y = filled(kBF16, {kTokens, 16, 128});
  const bool trained = state.range(0) == 1;
  measure(state, (trained ? 5 : 3) * t.x.view().num_bytes(), [&](Backend& b) {
    head_norm_rope_backward(b, t.args(), d_y, t.y, trained ? t.d_weight.view() : TensorView());
  });
}
BENCHMARK(head_norm_rope_backward_bf16)
    ->Arg(0)
    ->Arg(1)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

void swiglu_bf16(benchmark::State& state) {
  const int64_t tokens = state.range(0);
  const Tensor gate = filled(kBF16, {tokens, kFeedForward});
  const Tensor up = filled(kBF16, {tokens, kFeedForward});
  const Tensor y = filled(kBF16, {tokens, kFeedForward});
  measure(state, 3 * y.view().num_bytes(),
          [&](Backend& b) { act_and_mul(b, Activation::kSilu, gate, up, y); });
}
BENCHMARK(swiglu_bf16)->Arg(1)->Arg(kTokens)->Unit(benchmark::kMicrosecond)->UseRealTime();

void swiglu_backward_bf16(benchmark::State& state) {
  const Tensor gate = filled(kBF16, {kTokens, kFeedForward});
  const Tensor up = filled(kBF16, {kTokens, kFeedForward});
  const Tensor d_y = filled(kBF16, {kTokens, kFeedForward});
  const Tensor d_gate = filled(kBF16, {kTokens, kFeedForward});
  const Tensor d_up = filled(kBF16, {kTokens, kFeedForward});
  measure(state, 5 * gate.view().num_bytes(), [&](Backend& b) {
    act_and_mul_backward(b, Activation::kSilu, gate, up, d_y, d_gate, d_up);
  });
}
BENCHMARK(swiglu_backward_bf16)->Unit(benchmark::kMillisecond)->UseRealTime();

constexpr int64_t kDeltaHeads = 16;
constexpr int64_t kDeltaWidth = kDeltaHeads * 128;
constexpr int64_t kConvChannels = 3 * kDeltaWidth;  // [q | k | v]

void causal_conv_bf16(benchmark::State& state) {
  const int64_t tokens = state.range(0);
  const Tensor x = filled(kBF16, {tokens, kConvChannels});
  const Tensor y = filled(kBF16, {tokens, kConvChannels});
  const Tensor weight = filled(kF32, {kConvChannels, 4});
  const Tensor history = filled(kBF16, {3, kConvChannels});
  const StateSegment rows = {.begin = 0, .end = tokens, .state = history.view().data};
  measure(state, 2 * x.view().num_bytes(),
          [&](Backend& b) { causal_conv(b, {x, weight, {&rows, 1}}, y); });
}
BENCHMARK(causal_conv_bf16)->Arg(1)->Arg(kTokens)->Unit(benchmark::kMicrosecond)->UseRealTime();

void causal_conv_backward_bf16(benchmark::State& state) {
  const Tensor x = filled(kBF16, {kTokens, kConvChannels});
  const Tensor d_y = filled(kBF16, {kTokens, kConvChannels});
  const Tensor d_x = filled(kBF16, {kTokens, kConvChannels});
  const Tensor weight = filled(kF32, {kConvChannels, 4});
  const Tensor d_weight = filled(kF32, {kConvChannels, 4});
  const StateSegment rows = {.begin = 0, .end = kTokens};
  const TensorView wanted = state.range(0) == 1 ? d_weight.view() : TensorView();
  measure(state, 3 * x.view().num_bytes(),
          [&](Backend& b) { causal_conv_backward(b, {x, weight, {&rows, 1}}, d_y, d_x, wanted); });
}
BENCHMARK(causal_conv_backward_bf16)->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond)->UseRealTime();

void gated_norm_bf16(benchmark::State& state) {
  const int64_t tokens = state.range(0);
  const Tensor x = filled(kBF16, {tokens, kDeltaHeads, 128});
  const Tensor z = filled(kBF16, {tokens, kDeltaWidth});
  const Tensor y = filled(kBF16, {tokens, kDeltaWidth});
  const Tensor weight = filled(kF32, {128});
  measure(state, 3 * x.view().num_bytes(), [&](Backend& b) { gated_norm(b, {x, z, weight}, y); });
}
BENCHMARK(gated_norm_bf16)->Arg(1)->Arg(kTokens)->Unit(benchmark::kMicrosecond)->UseRealTime();

void gated_norm_backward_bf16(benchmark::State& state) {
  const Tensor x = filled(kBF16, {kTokens, kDeltaHeads, 128});
  const Tensor z = filled(kBF16, {kTokens, kDeltaWidth});
  const Tensor d_y = filled(kBF16, {kTokens, kDeltaWidth});
  const Tensor d_x = filled(kBF16, {kTokens, kDeltaHeads, 128});
  const Tensor d_z = filled(kBF16, {kTokens, kDeltaWidth});
  const Tensor weight = filled(kF32, {128});
  const Tensor d_weight = filled(kF32, {128});
  const bool trained = state.range(0) == 1;
  measure(state, (trained ? 8 : 5) * x.view().num_bytes(), [&](Backend& b) {
    gated_norm_backward(b, {x, z, weight}, d_y, d_x, d_z, trained ? d_weight.view() : TensorView());
  });
}
BENCHMARK(gated_norm_backward_bf16)->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond)->UseRealTime();

void delta_gates_bf16(benchmark::State& state) {
  const Tensor a = filled(kBF16, {kTokens, kDeltaHeads});
  const Tensor head = filled(kF32, {kDeltaHeads});
  const Tensor log_decay = filled(kF32, {kTokens, kDeltaHeads});
  const Tensor beta = filled(kF32, {kTokens, kDeltaHeads});
  measure(state, 2 * (a.view().num_bytes() + beta.view().num_bytes()),
          [&](Backend& b) { delta_gates(b, {a, a, head, head}, log_decay, beta); });
}
BENCHMARK(delta_gates_bf16)->Unit(benchmark::kMicrosecond)->UseRealTime();

void logsumexp_f32(benchmark::State& state) {
  const int64_t rows = state.range(0);
  const Tensor logits = filled(kF32, {rows, kVocab});
  const Tensor lse = filled(kF32, {rows, 2});
  measure(state, logits.view().num_bytes(), [&](Backend& b) { logsumexp(b, logits, lse); });
}
BENCHMARK(logsumexp_f32)->Arg(1)->Arg(128)->Unit(benchmark::kMillisecond)->UseRealTime();

void log_softmax_backward_f32_to_bf16(benchmark::State& state) {
  const int64_t rows = 128;
  const Tensor logits = filled(kF32, {rows, kVocab});
  const Tensor d_logits = filled(kBF16, {rows, kVocab});
  const Tensor lse = filled(kF32, {rows, 2});
  const std::vector<int32_t> targets(rows, 5);
  const std::vector<float> d_lp(rows, 1.0f);
  measure(state, logits.view().num_bytes() + d_logits.view().num_bytes(),
          [&](Backend& b) { log_softmax_backward(b, logits, lse, targets, d_lp, d_logits); });
}
BENCHMARK(log_softmax_backward_f32_to_bf16)->Unit(benchmark::kMillisecond)->UseRealTime();

void adamw_f32(benchmark::State& state) {
  const int64_t n = 1 << 24;
  const Tensor g = filled(kF32, {n});
  const Tensor p = filled(kF32, {n});
  const Tensor m = filled(kF32, {n});
  const Tensor v(cpu_allocator(), kF32, {n});
  measure(state, 7 * g.view().num_bytes(), [&](Backend& b) { adamw(b, {}, g, p, m, v); });
}
BENCHMARK(adamw_f32)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
}  // namespace strata::ops

BENCHMARK_MAIN();
