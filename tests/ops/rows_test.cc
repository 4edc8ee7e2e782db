// SPDX-License-Identifier: Apache-2.0
// A kind of backend of its own, linked without a change in src/: its every row refuses by name.
#include "ops/rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "backend/page_queue.h"
#include "base/error.h"
#include "base/threads.h"
#include "ops/adamw.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/elementwise.h"
#include "ops/gemm.h"
#include "ops/group_bias.h"
#include "ops/limits.h"
#include "ops/log_softmax.h"
#include "ops/rms_norm.h"

namespace strata::ops {
namespace {

using testing::HasSubstr;

template <size_t kSize>
struct Name {
  char text[kSize];
  constexpr Name(const char (&from)[kSize]) { std::copy_n(from, kSize, text); }
};

template <typename R, typename... Args>
using Function = R (*)(Args...);

// A function of any row.
template <Name kName>
struct Refuses {
  template <typename R, typename... Args>
  constexpr operator Function<R, Args...>() const {
    return [](Args...) -> R {
      throw Error(ErrorCode::kUnsupported, std::string(kName.text) + ": not on this backend");
    };
  }
};

constexpr Rows kRefusing = {
    .adamw = {.run = Refuses<"adamw.run">(), .list = Refuses<"adamw.list">()},
    .attention = {.forward = Refuses<"attention.forward">(),
                  .backward = Refuses<"attention.backward">()},
    .cache_write = {.run = Refuses<"cache_write.run">()},
    .causal_conv = {.forward = Refuses<"causal_conv.forward">(),
                    .backward = Refuses<"causal_conv.backward">()},
    .choose_tokens = {.choose = Refuses<"choose_tokens.choose">(),
                      .draw = Refuses<"choose_tokens.draw">(),
                      .topk = Refuses<"choose_tokens.topk">()},
    .clamped_swiglu = {.forward = Refuses<"clamped_swiglu.forward">(),
                       .backward = Refuses<"clamped_swiglu.backward">()},
    .compressor = {.forward = Refuses<"compressor.forward">(),
                   .backward = Refuses<"compressor.backward">()},
    .delta_gates = {.forward = Refuses<"delta_gates.forward">(),
                    .backward = Refuses<"delta_gates.backward">()},
    .delta_net = {.forward = Refuses<"delta_net.forward">(),
                  .backward = Refuses<"delta_net.backward">()},
    .elementwise = {.copy = Refuses<"elementwise.copy">(),
                    .fill_zero = Refuses<"elementwise.fill_zero">(),
                    .fill = Refuses<"elementwise.fill">(),
                    .round_to_bf16_in_place = Refuses<"elementwise.round_to_bf16_in_place">(),
                    .to_host = Refuses<"elementwise.to_host">(),
                    .from_host = Refuses<"elementwise.from_host">(),
                    .indices_to_host = Refuses<"elementwise.indices_to_host">(),
                    .ends_to_host = Refuses<"elementwise.ends_to_host">(),
                    .indices_from_host = Refuses<"elementwise.indices_from_host">(),
                    .ends_from_host = Refuses<"elementwise.ends_from_host">(),
                    .copy_bytes = Refuses<"elementwise.copy_bytes">(),
                    .add_into = Refuses<"elementwise.add_into">(),
                    .scale = Refuses<"elementwise.scale">(),
                    .scale_by = Refuses<"elementwise.scale_by">(),
                    .gather = Refuses<"elementwise.gather">(),
                    .gather_listed = Refuses<"elementwise.gather_listed">(),
                    .gather_sum = Refuses<"elementwise.gather_sum">(),
                    .gather_columns = Refuses<"elementwise.gather_columns">(),
                    .scatter_add_columns = Refuses<"elementwise.scatter_add_columns">(),
                    .scatter_values = Refuses<"elementwise.scatter_values">(),
                    .scatter_add = Refuses<"elementwise.scatter_add">(),
                    .add_rows_into = Refuses<"elementwise.add_rows_into">(),
                    .sum_of_squares = Refuses<"elementwise.sum_of_squares">(),
                    .add_squares = Refuses<"elementwise.add_squares">(),
                    .sum_of_squares_list = Refuses<"elementwise.sum_of_squares_list">()},
    .gated = {.forward = Refuses<"gated.forward">(),
              .backward = Refuses<"gated.backward">(),
              .rows_forward = Refuses<"gated.rows_forward">(),
              .rows_backward = Refuses<"gated.rows_backward">()},
    .gated_norm = {.forward = Refuses<"gated_norm.forward">(),
                   .backward = Refuses<"gated_norm.backward">()},
    .gemm = {.list = Refuses<"gemm.list">(),
             .runs = Refuses<"gemm.runs">(),
             .dx_list = Refuses<"gemm.dx_list">(),
             .dx_blocked = Refuses<"gemm.dx_blocked">(),
             .dx_each = Refuses<"gemm.dx_each">(),
             .dw = Refuses<"gemm.dw">()},
    .gemm_groups = {.divide = Refuses<"gemm_groups.divide">(),
                    .products = Refuses<"gemm_groups.products">(),
                    .products_dx = Refuses<"gemm_groups.products_dx">(),
                    .runs = Refuses<"gemm_groups.runs">(),
                    .runs_dx = Refuses<"gemm_groups.runs_dx">(),
                    .scale_runs = Refuses<"gemm_groups.scale_runs">(),
                    .dw = Refuses<"gemm_groups.dw">()},
    .group_bias = {.forward = Refuses<"group_bias.forward">(),
                   .backward = Refuses<"group_bias.backward">()},
    .hyper_connection = {.mix = Refuses<"hyper_connection.mix">(),
                         .mix_backward = Refuses<"hyper_connection.mix_backward">(),
                         .weights = Refuses<"hyper_connection.weights">(),
                         .weights_backward = Refuses<"hyper_connection.weights_backward">(),
                         .collapse = Refuses<"hyper_connection.collapse">(),
                         .collapse_backward = Refuses<"hyper_connection.collapse_backward">(),
                         .expand = Refuses<"hyper_connection.expand">(),
                         .expand_backward = Refuses<"hyper_connection.expand_backward">()},
    .indexer = {.select = Refuses<"indexer.select">()},
    .indexer_loss = {.run = Refuses<"indexer_loss.run">()},
    .limits = {.matrix_flops = Refuses<"limits.matrix_flops">(),
               .read_bandwidth = Refuses<"limits.read_bandwidth">()},
    .log_softmax = {.map = Refuses<"log_softmax.map">(),
                    .logsumexp = Refuses<"log_softmax.logsumexp">(),
                    .target_logprobs = Refuses<"log_softmax.target_logprobs">(),
                    .backward = Refuses<"log_softmax.backward">()},
    .pack = {.panel_width = Refuses<"pack.panel_width">(),
             .pack = Refuses<"pack.pack">(),
             .list = Refuses<"pack.list">(),
             .narrow = Refuses<"pack.narrow">(),
             .unpack = Refuses<"pack.unpack">(),
             .gather_rows = Refuses<"pack.gather_rows">()},
    .pages = {.queue = Refuses<"pages.queue">()},
    .rms_norm = {.forward = Refuses<"rms_norm.forward">(),
                 .backward = Refuses<"rms_norm.backward">()},
    .rope = {.forward = Refuses<"rope.forward">(), .backward = Refuses<"rope.backward">()},
    .router = {.route = Refuses<"router.route">(),
               .route_to_given_experts = Refuses<"router.route_to_given_experts">(),
               .look_up = Refuses<"router.look_up">(),
               .sort = Refuses<"router.sort">(),
               .balance_bias = Refuses<"router.balance_bias">(),
               .backward = Refuses<"router.backward">()},
    .row_scale = {.forward = Refuses<"row_scale.forward">(),
                  .backward = Refuses<"row_scale.backward">()},
    .sparse_attention = {.forward = Refuses<"sparse_attention.forward">(),
                         .backward = Refuses<"sparse_attention.backward">()},
    .stage = {.list = [](Backend&, const void* list, int64_t) { return list; }},
    .tail_rope = {.forward = Refuses<"tail_rope.forward">(),
                  .backward = Refuses<"tail_rope.backward">()},
};
constexpr BackendKind kRefusingKind = {.name = "refusing", .rows = &kRefusing};

class RefusingBackend : public Backend {
 public:
  explicit RefusingBackend(const BackendKind& kind = kRefusingKind)
      : Backend(kind, cpu_allocator()) {}
  [[nodiscard]] std::string_view arithmetic() const override { return "none"; }
  [[nodiscard]] std::unique_ptr<Backend> sharing() override {
    return std::make_unique<RefusingBackend>();
  }
  [[nodiscard]] std::unique_ptr<Backend> counter() const override {
    return std::make_unique<RefusingBackend>();
  }
};

std::string refusal(const auto& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Rows, AKindOfItsOwnIsCalledForEveryOp) {
  RefusingBackend backend;
  const Tensor x(cpu_allocator(), DType::kF32, {2, 16});
  const Tensor row(cpu_allocator(), DType::kF32, {16});
  const Tensor lse(cpu_allocator(), DType::kF32, {2, 2});
  std::vector<float> host(32);
  EXPECT_THAT(refusal([&] { copy(backend, x, x); }), HasSubstr("elementwise.copy"));
  EXPECT_THAT(refusal([&] { to_host(backend, x, host); }), HasSubstr("elementwise.to_host"));
  EXPECT_THAT(refusal([&] { from_host(backend, host, x); }), HasSubstr("elementwise.from_host"));
  EXPECT_THAT(refusal([&] { adamw(backend, {}, row, row, row, row); }), HasSubstr("adamw.run"));
  EXPECT_THAT(refusal([&] { logsumexp(backend, x, lse); }), HasSubstr("log_softmax.logsumexp"));
  EXPECT_THAT(refusal([&] { rms_norm(backend, {.x = x, .weight = row}, x, {}); }),
              HasSubstr("rms_norm.forward"));
  EXPECT_THAT(refusal([&] { panel_width(backend); }), HasSubstr("pack.panel_width"));
  const PanelView panel = {
      .data = x.view().data, .dtype = DType::kF32, .rows = 2, .cols = 16, .width = 16};
  const Tensor y(cpu_allocator(), DType::kF32, {2, 2});
  EXPECT_THAT(refusal([&] { gemm(backend, {.x = x, .w = panel}, y); }), HasSubstr("gemm.list"));
  EXPECT_THAT(refusal([&] { LimitProbe(backend).measure_matrix_flops(DType::kF32); }),
              HasSubstr("limits.matrix_flops"));
}

// Of a kind that knows nothing of it, and of the CPU where an op has no region: other work is let
// in behind each op where it is due, but for ops of that work itself.
TEST(Rows, OtherWorkIsLetInBehindEveryOp) {
  static constexpr Rows kRows = [] {
    Rows rows = kRefusing;
    rows.elementwise.copy_bytes = [](Backend&, const void*, void*, int64_t) {};
    return rows;
  }();
  static constexpr BackendKind kKind = {.name = "idle", .rows = &kRows};
  RefusingBackend idle(kKind);
  CpuBackend cpu(CpuPath::kReference, 2);
  for (Backend* backend : {static_cast<Backend*>(&idle), static_cast<Backend*>(&cpu)}) {
    SCOPED_TRACE(backend->kind().name);
    char from = 1, to = 0;
    const auto op = [&] { copy_bytes(*backend, &from, &to, 1); };
    int num_asked = 0, num_ran = 0;
    const auto is_due = [&] { return ++num_asked <= 2; };
    const auto run = [&] {
      ++num_ran;
      op();
    };
    const Interruption interruption = {.is_due = is_due, .run = run};
    {
      const Backend::Breaks breaks(*backend, interruption);
      for (int i = 0; i < 3; ++i) op();
    }
    op();
    EXPECT_EQ(num_asked, 3);
    EXPECT_EQ(num_ran, 2);
  }
}

TEST(Rows, NoneIsMissing) {
  const CpuBackend cpu(CpuPath::kReference, 1);
  for (const Rows* rows : {&kRefusing, &cpu.rows()}) {
    using Any = void (*)();
    static_assert(sizeof(Rows) % sizeof(Any) == 0);
    const auto* functions = reinterpret_cast<const Any*>(rows);
    for (size_t i = 0; i < sizeof(Rows) / sizeof(Any); ++i) EXPECT_NE(functions[i], nullptr) << i;
  }
}

}  // namespace
}  // namespace strata::ops
