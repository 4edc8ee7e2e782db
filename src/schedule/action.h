// SPDX-License-Identifier: Apache-2.0
// Actions of a pipeline schedule, and the table of them: a row a rank, whose places are a queue. A
// rank runs its places in order, each when what it needs is there; columns are no clock.
// Names are PyTorch's (torch.distributed.pipelining): 2F0 is the forward of stage 2 on micro-batch
// 0, and (0F7;7B3)OVERLAP_F_B runs two actions at once.
// A stage is a run of layers. Generated tables put stage s on rank s mod p, as chunk s div p; other
// tables put it where its actions stand.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace strata::schedule {

enum class Op : uint8_t {
  kForward,       // F
  kInputGrad,     // I: the gradient of the stage's input
  kWeightGrad,    // W: the gradients of its weights, after I
  kBackward,      // B: I and W in one
  kSendForward,   // SEND_F: this stage's output, to the next stage
  kRecvForward,   // RECV_F: this stage's input
  kSendBackward,  // SEND_B: the gradient of this stage's input, to the stage before
  kRecvBackward,  // RECV_B: the gradient of this stage's output
};

struct Action {
  Op op = Op::kForward;
  int stage = 0;
  int microbatch = 0;
  bool operator==(const Action&) const = default;
};

std::string_view op_name(Op op);
std::string to_string(const Action& action);

[[nodiscard]] constexpr bool is_transfer(Op op) { return op >= Op::kSendForward; }
[[nodiscard]] constexpr bool is_send(Op op) {
  return op == Op::kSendForward || op == Op::kSendBackward;
}
// The other end of a transfer: 2SEND_F0 is received as 3RECV_F0.
[[nodiscard]] Action counterpart(const Action& transfer);
// Computes the gradient of a stage's input.
[[nodiscard]] constexpr bool is_backward(Op op) {
  return op == Op::kInputGrad || op == Op::kBackward;
}
// Computes the gradients of a stage's weights.
[[nodiscard]] constexpr bool has_weight_grad(Op op) {
  return op == Op::kWeightGrad || op == Op::kBackward;
}

// One place of a row: idle, an action, or two that overlap.
struct Slot {
  Slot() = default;
  explicit Slot(const Action& only) : count(1), parts{only, {}} {}
  Slot(const Action& first, const Action& second) : count(2), parts{first, second} {}
  [[nodiscard]] std::span<const Action> actions() const {
    return {parts.data(), static_cast<size_t>(count)};
  }
  bool operator==(const Slot&) const = default;

  int count = 0;
  std::array<Action, 2> parts = {};
};

std::string to_string(const Slot& slot);

struct Table {
  int num_stages = 0;
  int num_microbatches = 0;
  std::vector<std::vector<Slot>> rows = {};  // [ranks][places]
  [[nodiscard]] int num_ranks() const { return static_cast<int>(rows.size()); }
  // Stages and micro-batches as one list: how many there are, and the place of one.
  [[nodiscard]] size_t num_items() const {
    return static_cast<size_t>(num_stages) * static_cast<size_t>(num_microbatches);
  }
  [[nodiscard]] size_t item(int stage, int microbatch) const {
    return static_cast<size_t>(stage) * static_cast<size_t>(num_microbatches) +
           static_cast<size_t>(microbatch);
  }
  bool operator==(const Table&) const = default;
};

[[nodiscard]] bool has_transfers(const Table& table);

// The rank where each stage's first action stands; -1 for a stage without actions.
std::vector<int> ranks_of_stages(const Table& table);  // [num_stages]

}  // namespace strata::schedule
