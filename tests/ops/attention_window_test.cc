// SPDX-License-Identifier: Apache-2.0
// Windows and chunks of attention beyond what the table of attention_test.cc covers: where they
// begin and end, what they never read, and what has no gradient.
#include <utility>

#include "tests/ops/attention_test.h"

namespace strata::ops::testing {
namespace {

constexpr DType kTypes[] = {DType::kF32, DType::kBF16};

const AttentionCase kGrouped{
    .lengths = {300}, .num_heads = 6, .num_kv_heads = 2, .head_dim = 16, .window = 100};
const AttentionCase kLatent{
    .lengths = {150}, .num_heads = 5, .num_kv_heads = 1, .head_dim = 24, .latent_dim = 16};

// Calls body(case, type, path) for both shapes with each of the windows, also as chunks.
template <typename Body>
void for_windows(std::initializer_list<int64_t> windows, Body&& body) {
  for (const int64_t window : windows) {
    AttentionCase shapes[] = {kGrouped, kLatent, kGrouped, kLatent};
    shapes[2].in_chunks = shapes[3].in_chunks = true;
    for (AttentionCase& c : shapes) {
      c.window = window;
      for (const DType type : kTypes) {
        for (const CpuPath path : supported_paths()) {
          SCOPED_TRACE(std::string(cpu_path_name(path)) + " " + std::string(dtype_name(type)) +
                       " " + c.name());
          body(c, type, path);
          if (::testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

TEST(AttentionWindow, OneNoShorterThanTheSequenceIsNone) {
  for_windows({300, 301, std::numeric_limits<int64_t>::max()}, [](const AttentionCase& c,
                                                                  DType type, CpuPath path) {
    const AttentionData data(c, type);
    const TrainingSegments training(c, data);
    AttentionCase all = c;
    all.window = 0;
    all.in_chunks = false;
    for (const int threads : {1, 7}) {
      CpuBackend backend(path, threads);
      const Forwarded want = run_forward(backend, all, data, training.segments());
      const Forwarded got = run_forward(backend, c, data, training.segments());
      expect_same_bits(got.out, want.out);
      expect_same_bits(got.lse, want.lse);
      const Gradients want_grads =
          run_backward(backend, all, data, training.segments(), want, type);
      const Gradients grads = run_backward(backend, c, data, training.segments(), want, type);
      expect_same_bits(grads.d_q, want_grads.d_q);
      expect_same_bits(grads.d_k, want_grads.d_k);
      expect_same_bits(grads.d_v, want_grads.d_v);
    }
  });
}

// Chunks whose keys before the window of their first row hold what no sum survives, or have no
// memory at all: the bits of the whole sequence.
TEST(AttentionWindow, KeysBeforeItAreNotRead) {
  for_windows({1, 2, 63, 64, 65, 100}, [](const AttentionCase& c, DType type, CpuPath path) {
    const AttentionData data(c, type);
    const TrainingSegments training(c, data);
    CpuBackend backend(path, 2);
    const Forwarded want = run_forward(backend, c, data, training.segments());
    const int64_t length = c.lengths[0];
    const AttentionArgs args{
        .q = data.q, .segments = {}, .window = c.window, .in_chunks = c.in_chunks};
    for (const int64_t page_size : {1, 3, 64, 1000}) {
      for (const bool has_memory : {true, false}) {
        std::vector<std::unique_ptr<Pages>> pages;
        std::vector<AttentionSegment> segments;
        for (const auto& [begin, end] :
             {std::pair<int64_t, int64_t>{0, 130}, {130, 131}, {131, 138}, {138, length}}) {
          AttentionData broken = data;
          const double poison = begin % 2 == 0 ? std::nan("") : INFINITY;
          for (const Buffer* source : {&broken.k, &broken.v}) {
            const int64_t width = source->view().shape[1] * source->view().shape[2];
            for (int64_t i = 0; i < args.first_key(begin) * width; ++i) {
              store_element(source->view().data, type, i, poison);
            }
          }
          pages.push_back(std::make_unique<Pages>(broken, 0, end, page_size));
          KvView kv = pages.back()->view();
          while (!has_memory && kv.ranges[0].end <= args.first_key(begin)) {
            kv.ranges = kv.ranges.subspan(1);
          }
          segments.push_back({begin, end, begin, kv});
        }
        for (const int threads : {1, 7}) {
          CpuBackend team(path, threads);
          const Forwarded got = run_forward(team, c, data, segments);
          expect_same_bits(got.out, want.out);
          expect_same_bits(got.lse, want.lse);
        }
      }
    }
  });
}

// One query has a gradient: the keys it does not see have none, those it sees have some.
TEST(AttentionWindow, HiddenPairsHaveNoGradient) {
  for_windows({1, 2, 64, 65, 100}, [](const AttentionCase& c, DType type, CpuPath path) {
    constexpr int64_t kQuery = 137;
    AttentionData data(c, type);
    const int64_t out_width = c.num_heads * c.value_dim();
    for (int64_t i = 0; i < data.d_out.size(); ++i) {
      if (i / out_width != kQuery) data.d_out.set(i, 0);
    }
    const TrainingSegments training(c, data);
    const int64_t first_key = args_of(c, data, {}).first_key(kQuery);
    for (const int threads : {1, 7}) {
      CpuBackend backend(path, threads);
      const Forwarded forward = run_forward(backend, c, data, training.segments());
      const Gradients grads =
          run_backward(backend, c, data, training.segments(), forward, DType::kF32);
      for (const Buffer* grad : {&grads.d_k, &grads.d_v}) {
        const int64_t width = grad->view().shape[1] * grad->view().shape[2];
        for (int64_t key = 0; key < c.num_tokens(); ++key) {
          // A query that sees one key has no gradient of scores.
          const bool sees = first_key <= key && key <= kQuery;
          const bool has_some = sees && (grad == &grads.d_v || first_key < kQuery);
          double largest = 0;
          for (int64_t i = key * width; i < (key + 1) * width; ++i) {
            largest = std::max(largest, std::abs(grad->get(i)));
          }
          EXPECT_EQ(largest > 0, has_some) << key << ": " << largest;
        }
      }
    }
  });
}

TEST(AttentionWindowDeathTest, ASeenKeyWithoutMemory) {
  const AttentionCase c{.lengths = {10}, .num_heads = 1, .num_kv_heads = 1, .window = 3};
  const AttentionData data(c, DType::kF32);
  const Pages pages(data, 0, 10, 1);
  CpuBackend backend(CpuPath::kReference, 1);
  AttentionSegment segment{.begin = 9, .end = 10, .first_position = 9, .kv = pages.view()};
  segment.kv.ranges = pages.view().ranges.subspan(7);
  run_forward(backend, c, data, {&segment, 1});
  segment.kv.ranges = pages.view().ranges.subspan(8);
  EXPECT_DEATH(run_forward(backend, c, data, {&segment, 1}), "range.begin");
}

}  // namespace
}  // namespace strata::ops::testing
