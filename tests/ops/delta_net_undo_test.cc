// SPDX-License-Identifier: Apache-2.0
// Rows of the gated delta rule that are taken back.
#include <cstring>

#include "tests/ops/delta_net_test.h"

namespace strata::ops::testing {
namespace {

constexpr DType kF32 = DType::kF32;

// Rows that do not end a chunk are as if they had not been where the decays before them are put
// back: rows behind are those of a sequence that never had them.
TEST(DeltaNet, PutBackDecaysTakeRowsBack) {
  const DeltaCase c{.lengths = {90}, .shape = {2, 4, 24, 40}};
  for (const int64_t stay : {5, 60, 66, 80}) {
    for (const CpuPath path : supported_paths()) {
      CpuBackend backend(path, 2);
      const DeltaData data(c, kF32);
      const Buffer want = run_delta(backend, c, data, whole_segments(c));
      Buffer state(kF32, Shape{delta_state_bytes(c.shape) / 4});
      Buffer out(kF32, c.out_shape());
      const auto run = [&](int64_t begin, int64_t end, int64_t position, Buffer& to) {
        std::vector<StateSegment> segments = {
            {.begin = begin, .end = end, .first_position = position, .state = state.view().data}};
        delta_net(backend, delta_args(c, data, segments), to);
      };
      run(0, stay, 0, out);
      const auto bytes = static_cast<size_t>(delta_decay_bytes(c.shape));
      std::vector<char> decays(bytes);
      std::memcpy(decays.data(), state.view().data, bytes);
      Buffer rejected(kF32, c.out_shape());
      run(0, 3, stay, rejected);  // other rows than those that follow
      std::memcpy(state.view().data, decays.data(), bytes);
      run(stay, 90, stay, out);
      EXPECT_EQ(out.values(), want.values()) << stay;
    }
  }
}

}  // namespace
}  // namespace strata::ops::testing
