// SPDX-License-Identifier: Apache-2.0
// The rows of the CPU's kind with every function late (tests/deferred/deferred.h). The direct ones
// are those of the program, under another name.
#define kRows kDirectRows
#include "ops/cpu/rows.cc"  // NOLINT: in whose place this file is linked
#undef kRows

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "backend/file_memory.h"
#include "backend/page_queue.h"
#include "base/function_ref.h"
#include "ops/adamw.h"
#include "ops/attention.h"
#include "ops/cache_write.h"
#include "ops/causal_conv.h"
#include "ops/choose_tokens.h"
#include "ops/clamped_swiglu.h"
#include "ops/compressor.h"
#include "ops/delta_gates.h"
#include "ops/delta_net.h"
#include "ops/gated.h"
#include "ops/gated_norm.h"
#include "ops/gemm.h"
#include "ops/gemm_groups.h"
#include "ops/group_bias.h"
#include "ops/hyper_connection.h"
#include "ops/indexer.h"
#include "ops/indexer_loss.h"
#include "ops/log_softmax.h"
#include "ops/pack.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"
#include "ops/router.h"
#include "ops/sparse_attention.h"
#include "ops/tail_rope.h"
#include "tests/deferred/deferred.h"

namespace strata::ops::cpu {

extern const Rows kRows;

namespace {

using deferred::Fault;

// What late work runs on: a backend of the same arithmetic, with scratch of its own and one thread.
// The queue's thread only.
CpuBackend& worker_of(CpuPath path) {
  static auto* const workers = new std::map<CpuPath, std::unique_ptr<CpuBackend>>;
  std::unique_ptr<CpuBackend>& worker = (*workers)[path];
  if (worker == nullptr) worker = std::make_unique<CpuBackend>(path, 1);
  return *worker;
}

CpuPath path_of(const Backend& backend) { return static_cast<const CpuBackend&>(backend).path(); }

bool runs_at_once(const Backend& backend) { return backend.is_counting() || deferred::at_once(); }

// One that counts what work of `backend` takes.
CpuBackend& counter_of(const Backend& backend) {
  thread_local std::map<std::pair<CpuPath, int>, std::unique_ptr<Backend>> counters;
  std::unique_ptr<Backend>& counter = counters[{path_of(backend), backend.parallelism()}];
  if (counter == nullptr) counter = backend.counter();
  return static_cast<CpuBackend&>(*counter);
}

// Takes from the backend's scratch what the work would take there, and gives it back: the work
// itself runs on another's, and what passes take is compared with their plans.
template <auto kGet, typename... Args>
void take_scratch(Backend& backend, Args... args) {
  const deferred::AtOnce scope;
  CpuBackend& counter = counter_of(backend);
  counter.reset_count();
  kGet(kDirectRows)(counter, args...);
  const int64_t bytes = counter.scratch().high_water();
  const Scratch::Mark mark(backend.scratch());
  if (bytes > 0) backend.scratch().take(bytes);
}

// Arguments are kept by value: views, numbers, and lists that the op has staged.
template <auto kGet, typename... Args>
void push(Backend& backend, Args... args) {
  deferred::later([path = path_of(backend), held = std::tuple<std::decay_t<Args>...>(args...)] {
    std::apply([&](const auto&... each) { kGet(kDirectRows)(worker_of(path), each...); }, held);
  });
}

template <typename R, typename... Args>
using OfRow = R (*)(Backend&, Args...);

// Returns at once.
template <auto kGet>
struct Late {
  template <typename... Args>
  constexpr operator OfRow<void, Args...>() const {
    return [](Backend& backend, Args... args) {
      if (runs_at_once(backend)) return kGet(kDirectRows)(backend, args...);
      take_scratch<kGet, Args...>(backend, args...);
      push<kGet, Args...>(backend, args...);
    };
  }
};

// Returns a number, or writes to the host's memory: waits, but for a planted fault.
template <auto kGet, Fault kFault, bool kTakes = true>
struct Waits {
  template <typename R, typename... Args>
  constexpr operator OfRow<R, Args...>() const {
    return [](Backend& backend, Args... args) -> R {
      if (runs_at_once(backend)) return kGet(kDirectRows)(backend, args...);
      if (deferred::planted(kFault)) {
        const deferred::AtOnce too_soon;
        return kGet(kDirectRows)(backend, args...);
      }
      if constexpr (kTakes) take_scratch<kGet, Args...>(backend, args...);
      if constexpr (std::is_void_v<R>) {
        deferred::later([&] { kGet(kDirectRows)(worker_of(path_of(backend)), args...); });
        deferred::wait();
      } else {
        R result = {};
        deferred::later([&] { result = kGet(kDirectRows)(worker_of(path_of(backend)), args...); });
        deferred::wait();
        return result;
      }
    };
  }
};
template <auto kGet>
using Copy = Waits<kGet, Fault::kCopyUnawaited>;
template <auto kGet>
using Awaited = Waits<kGet, Fault::kNumberUnawaited>;
template <auto kGet>
using Measured = Waits<kGet, Fault::kNumberUnawaited, /*kTakes=*/false>;

const void* keep_list(Backend& backend, const void* list, int64_t bytes) {
  if (runs_at_once(backend) || deferred::planted(Fault::kListUnstaged)) return list;
  return deferred::keep(list, bytes);
}

// Memory in files as a device's: what leaves is copied to where only this queue finds it, in files
// too, and the place is filled with NaN; it is there again when it was asked for, all in the order
// of the work.
class DeferredPages final : public PageQueue {
 public:
  explicit DeferredPages(FileAllocator& files) : files_(files) {}
  ~DeferredPages() override { deferred::wait(); }
  void write_behind(std::span<const PageRange> ranges) override {
    for (const PageRange& range : ranges) {
      if (!deferred::planted(Fault::kWrittenTooSoon)) {
        leave(range);
        continue;
      }
      const auto copy = std::make_shared<Memory>(copy_of(range));
      deferred::later([this, range, copy] { put_away(range, std::move(*copy)); });
    }
  }
  void let_go(std::span<const PageRange> ranges) override {
    for (const PageRange& range : ranges) leave(range);
  }
  void may_leave(std::span<const PageRange> /*ranges*/) override {}
  void read_ahead(std::span<const PageRange> ranges) override {
    for (const PageRange& range : ranges) {
      deferred::later([this, range] {
        const auto found = away_.find(range.data);
        if (found == away_.end()) return;
        CHECK(found->second.size() == range.bytes, found->second.size(), range.bytes);
        std::memcpy(range.data, found->second.data(), static_cast<size_t>(range.bytes));
        away_.erase(found);
      });
    }
  }
  void wait() override { deferred::wait(); }

 private:
  Memory copy_of(const PageRange& range) {
    Memory copy(files_, range.bytes);
    std::memcpy(copy.data(), range.data, static_cast<size_t>(range.bytes));
    return copy;
  }
  void leave(const PageRange& range) {
    deferred::later([this, range] { put_away(range, copy_of(range)); });
  }
  void put_away(const PageRange& range, Memory copy) {
    away_[range.data] = std::move(copy);
    std::memset(range.data, 0xff, static_cast<size_t>(range.bytes));
  }

  FileAllocator& files_;
  std::map<void*, Memory> away_;  // the queue's
};

}  // namespace

const Rows kRows = {
    .adamw = {.run = Late<[](const Rows& r) { return r.adamw.run; }>(),
              .list = Late<[](const Rows& r) { return r.adamw.list; }>()},
    .attention = {.forward = Late<[](const Rows& r) { return r.attention.forward; }>(),
                  .backward = Late<[](const Rows& r) { return r.attention.backward; }>()},
    .cache_write = {.run = Late<[](const Rows& r) { return r.cache_write.run; }>()},
    .causal_conv = {.forward = Late<[](const Rows& r) { return r.causal_conv.forward; }>(),
                    .backward = Late<[](const Rows& r) { return r.causal_conv.backward; }>()},
    .choose_tokens = {.choose = Awaited<[](const Rows& r) { return r.choose_tokens.choose; }>(),
                      .draw = Awaited<[](const Rows& r) { return r.choose_tokens.draw; }>(),
                      .topk = Awaited<[](const Rows& r) { return r.choose_tokens.topk; }>()},
    .clamped_swiglu = {.forward = Late<[](const Rows& r) { return r.clamped_swiglu.forward; }>(),
                       .backward = Late<[](const Rows& r) { return r.clamped_swiglu.backward; }>()},
    .compressor = {.forward = Late<[](const Rows& r) { return r.compressor.forward; }>(),
                   .backward = Late<[](const Rows& r) { return r.compressor.backward; }>()},
    .delta_gates = {.forward = Late<[](const Rows& r) { return r.delta_gates.forward; }>(),
                    .backward = Late<[](const Rows& r) { return r.delta_gates.backward; }>()},
    .delta_net = {.forward = Late<[](const Rows& r) { return r.delta_net.forward; }>(),
                  .backward = Late<[](const Rows& r) { return r.delta_net.backward; }>()},
    .elementwise =
        {.copy = Late<[](const Rows& r) { return r.elementwise.copy; }>(),
         .fill_zero = Late<[](const Rows& r) { return r.elementwise.fill_zero; }>(),
         .fill = Late<[](const Rows& r) { return r.elementwise.fill; }>(),
         .round_to_bf16_in_place =
             Late<[](const Rows& r) { return r.elementwise.round_to_bf16_in_place; }>(),
         .to_host = Copy<[](const Rows& r) { return r.elementwise.to_host; }>(),
         .from_host = Late<[](const Rows& r) { return r.elementwise.from_host; }>(),
         .indices_to_host = Copy<[](const Rows& r) { return r.elementwise.indices_to_host; }>(),
         .ends_to_host = Copy<[](const Rows& r) { return r.elementwise.ends_to_host; }>(),
         .indices_from_host = Late<[](const Rows& r) { return r.elementwise.indices_from_host; }>(),
         .ends_from_host = Late<[](const Rows& r) { return r.elementwise.ends_from_host; }>(),
         .copy_bytes = Late<[](const Rows& r) { return r.elementwise.copy_bytes; }>(),
         .add_into = Late<[](const Rows& r) { return r.elementwise.add_into; }>(),
         .scale = Late<[](const Rows& r) { return r.elementwise.scale; }>(),
         .scale_by = Late<[](const Rows& r) { return r.elementwise.scale_by; }>(),
         .gather = Late<[](const Rows& r) { return r.elementwise.gather; }>(),
         .gather_listed = Late<[](const Rows& r) { return r.elementwise.gather_listed; }>(),
         .gather_sum = Late<[](const Rows& r) { return r.elementwise.gather_sum; }>(),
         .gather_columns = Late<[](const Rows& r) { return r.elementwise.gather_columns; }>(),
         .scatter_add_columns =
             Late<[](const Rows& r) { return r.elementwise.scatter_add_columns; }>(),
         .scatter_values = Late<[](const Rows& r) { return r.elementwise.scatter_values; }>(),
         .scatter_add = Late<[](const Rows& r) { return r.elementwise.scatter_add; }>(),
         .add_rows_into = Late<[](const Rows& r) { return r.elementwise.add_rows_into; }>(),
         .sum_of_squares = Awaited<[](const Rows& r) { return r.elementwise.sum_of_squares; }>(),
         .add_squares = Awaited<[](const Rows& r) { return r.elementwise.add_squares; }>(),
         .sum_of_squares_list =
             Awaited<[](const Rows& r) { return r.elementwise.sum_of_squares_list; }>()},
    .gated = {.forward = Late<[](const Rows& r) { return r.gated.forward; }>(),
              .backward = Late<[](const Rows& r) { return r.gated.backward; }>(),
              .rows_forward = Late<[](const Rows& r) { return r.gated.rows_forward; }>(),
              .rows_backward = Late<[](const Rows& r) { return r.gated.rows_backward; }>()},
    .gated_norm = {.forward = Late<[](const Rows& r) { return r.gated_norm.forward; }>(),
                   .backward = Late<[](const Rows& r) { return r.gated_norm.backward; }>()},
    .gemm = {.list = Late<[](const Rows& r) { return r.gemm.list; }>(),
             .runs = Late<[](const Rows& r) { return r.gemm.runs; }>(),
             .dx_list = Late<[](const Rows& r) { return r.gemm.dx_list; }>(),
             .dx_blocked = Late<[](const Rows& r) { return r.gemm.dx_blocked; }>(),
             .dx_each = Late<[](const Rows& r) { return r.gemm.dx_each; }>(),
             .dw = Late<[](const Rows& r) { return r.gemm.dw; }>()},
    .gemm_groups = {.divide = Late<[](const Rows& r) { return r.gemm_groups.divide; }>(),
                    .products = Late<[](const Rows& r) { return r.gemm_groups.products; }>(),
                    .products_dx = Late<[](const Rows& r) { return r.gemm_groups.products_dx; }>(),
                    .runs = Late<[](const Rows& r) { return r.gemm_groups.runs; }>(),
                    .runs_dx = Late<[](const Rows& r) { return r.gemm_groups.runs_dx; }>(),
                    .scale_runs = Late<[](const Rows& r) { return r.gemm_groups.scale_runs; }>(),
                    .dw = Late<[](const Rows& r) { return r.gemm_groups.dw; }>()},
    .group_bias = {.forward = Late<[](const Rows& r) { return r.group_bias.forward; }>(),
                   .backward = Late<[](const Rows& r) { return r.group_bias.backward; }>()},
    .hyper_connection =
        {.mix = Late<[](const Rows& r) { return r.hyper_connection.mix; }>(),
         .mix_backward = Late<[](const Rows& r) { return r.hyper_connection.mix_backward; }>(),
         .weights = Late<[](const Rows& r) { return r.hyper_connection.weights; }>(),
         .weights_backward =
             Late<[](const Rows& r) { return r.hyper_connection.weights_backward; }>(),
         .collapse = Late<[](const Rows& r) { return r.hyper_connection.collapse; }>(),
         .collapse_backward =
             Late<[](const Rows& r) { return r.hyper_connection.collapse_backward; }>(),
         .expand = Late<[](const Rows& r) { return r.hyper_connection.expand; }>(),
         .expand_backward =
             Late<[](const Rows& r) { return r.hyper_connection.expand_backward; }>()},
    .indexer = {.select = Late<[](const Rows& r) { return r.indexer.select; }>()},
    .indexer_loss = {.run = Awaited<[](const Rows& r) { return r.indexer_loss.run; }>()},
    .limits = {.matrix_flops = Measured<[](const Rows& r) { return r.limits.matrix_flops; }>(),
               .read_bandwidth = Measured<[](const Rows& r) { return r.limits.read_bandwidth; }>()},
    .log_softmax = {.map = Late<[](const Rows& r) { return r.log_softmax.map; }>(),
                    .logsumexp = Late<[](const Rows& r) { return r.log_softmax.logsumexp; }>(),
                    .target_logprobs =
                        Awaited<[](const Rows& r) { return r.log_softmax.target_logprobs; }>(),
                    .backward = Late<[](const Rows& r) { return r.log_softmax.backward; }>()},
    .pack = {.panel_width = kDirectRows.pack.panel_width,
             .pack = Late<[](const Rows& r) { return r.pack.pack; }>(),
             .list = Late<[](const Rows& r) { return r.pack.list; }>(),
             .narrow = Late<[](const Rows& r) { return r.pack.narrow; }>(),
             .unpack = Late<[](const Rows& r) { return r.pack.unpack; }>(),
             .gather_rows = Late<[](const Rows& r) { return r.pack.gather_rows; }>()},
    .pages = {.queue = [](const std::string&, FileAllocator& files) -> std::unique_ptr<PageQueue> {
      return std::make_unique<DeferredPages>(files);
    }},
    .rms_norm = {.forward = Late<[](const Rows& r) { return r.rms_norm.forward; }>(),
                 .backward = Late<[](const Rows& r) { return r.rms_norm.backward; }>()},
    .rope = {.forward = Late<[](const Rows& r) { return r.rope.forward; }>(),
             .backward = Late<[](const Rows& r) { return r.rope.backward; }>()},
    .router = {.route = Late<[](const Rows& r) { return r.router.route; }>(),
               .route_to_given_experts =
                   Late<[](const Rows& r) { return r.router.route_to_given_experts; }>(),
               .look_up = Late<[](const Rows& r) { return r.router.look_up; }>(),
               .sort = Late<[](const Rows& r) { return r.router.sort; }>(),
               .balance_bias = Late<[](const Rows& r) { return r.router.balance_bias; }>(),
               .backward = Late<[](const Rows& r) { return r.router.backward; }>()},
    .row_scale = {.forward = Late<[](const Rows& r) { return r.row_scale.forward; }>(),
                  .backward = Late<[](const Rows& r) { return r.row_scale.backward; }>()},
    .sparse_attention = {.forward =
                             Late<[](const Rows& r) { return r.sparse_attention.forward; }>(),
                         .backward =
                             Late<[](const Rows& r) { return r.sparse_attention.backward; }>()},
    .stage = {.list = keep_list},
    .tail_rope = {.forward = Late<[](const Rows& r) { return r.tail_rope.forward; }>(),
                  .backward = Late<[](const Rows& r) { return r.tail_rope.backward; }>()},
};

}  // namespace strata::ops::cpu
