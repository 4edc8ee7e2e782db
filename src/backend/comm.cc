// SPDX-License-Identifier: Apache-2.0
#include "backend/comm.h"

#include <algorithm>

#include "backend/memory.h"
#include "base/check.h"

namespace strata {
namespace {

constexpr int64_t kGatherTag = -1;  // callers' tags are 0 or more

}  // namespace

void Comm::send(int to, int64_t tag, TensorView tensor) {
  CHECK(tensor.dense());
  const HostAccess access(cpu_allocator());
  send_bytes(to, tag, tensor.data, tensor.num_bytes());
}

void Comm::receive(int from, int64_t tag, TensorView tensor) {
  CHECK(tensor.dense());
  const HostAccess access(cpu_allocator());
  receive_bytes(from, tag, tensor.data, tensor.num_bytes());
}

void Comm::all_gather(std::span<const double> values, std::vector<double>& all) {
  all.resize(static_cast<size_t>(size()) * values.size());
  const auto bytes = static_cast<int64_t>(values.size_bytes());
  for (int other = 0; other < size(); ++other) {
    if (other != rank()) send_bytes(other, kGatherTag, values.data(), bytes);
  }
  for (int other = 0; other < size(); ++other) {
    const std::span part =
        std::span(all).subspan(static_cast<size_t>(other) * values.size(), values.size());
    if (other == rank()) {
      std::copy(values.begin(), values.end(), part.begin());
    } else {
      receive_bytes(other, kGatherTag, part.data(), bytes);
    }
  }
}

std::optional<RankFailure> Comm::settle(const std::optional<RankFailure>& own) {
  CHECK(size() == 1, size());  // who has others says how they hear of it
  return own;
}

Comm& Comm::breaking() {
  CHECK(size() == 1, size());  // likewise
  return *this;
}

void LoneComm::send_bytes(int to, int64_t tag, const void*, int64_t) { CHECK(false, to, tag); }
void LoneComm::receive_bytes(int from, int64_t tag, void*, int64_t) { CHECK(false, from, tag); }

}  // namespace strata
