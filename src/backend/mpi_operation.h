// SPDX-License-Identifier: Apache-2.0
// What is on its way between ranks over MPI, and the buffers of what is sent, which are used again.
// Whoever has them says which lock guards them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace strata {

constexpr int kData = 0, kControl = 1, kBreakData = 2;  // channels

// A message to another rank, or from there.
struct MpiOperation {
  int channel = kData;
  bool sends = true;
  int peer = 0, tag = 0;
  void* data = nullptr;
  int64_t bytes = 0;
  bool busy = false;                // until it has ended
  std::vector<std::byte> own = {};  // of a send
  bool is_cancelled = false;
  std::string fault = {};
  void* handle = nullptr;
  double began = 0.0;  // now_seconds()
};
using MpiOperations = std::vector<std::unique_ptr<MpiOperation>>;

// Makes the operation's buffer a copy of the bytes.
void copy_to_buffer(const void* data, int64_t bytes, MpiOperation& operation);

// Sends that have ended, to be used again.
class SendPool {
 public:
  // The one with the smallest buffer that fits, or with the largest, which gets another; a new one
  // where all are busy, so that what rests is no more than what was on its way at once. It is busy
  // from now on.
  MpiOperation& claim(int64_t bytes);

 private:
  MpiOperations long_, short_;
};

}  // namespace strata
