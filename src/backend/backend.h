// Backend: where the math of one engine runs: the CPU path, a thread team and scratch for kernels.
// Ops take it first. Engine thread only.
#pragma once
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/threads.h"
#include "tensor/arena.h"

namespace strata {

// Best first. Equalities of bits hold within one path; between paths there are tolerances.
enum class CpuPath { kAvx512Bf16, kAvx512, kAvx2, kReference };

std::string_view cpu_path_name(CpuPath path);
// What this machine can run.
bool cpu_path_supported(CpuPath path);
// The path in use: STRATA_CPU_PATH if set (an Error if unknown or unsupported), else the best
// supported.
CpuPath choose_cpu_path();

class Backend {
 public:
  Backend(CpuPath path, int num_threads) : path_(path), pool_(num_threads) {}
  [[nodiscard]] CpuPath path() const { return path_; }
  [[nodiscard]] ThreadPool& pool() { return pool_; }
  // Temporary memory of kernels and of a step; use it through Scratch::Mark.
  [[nodiscard]] Scratch& scratch() { return scratch_; }
  // A backend of one thread and its own scratch, for worker `worker` of a region of pool(): there,
  // ops run whole, one beside the other. Made at the first call of make_lanes(), which comes first.
  [[nodiscard]] Backend& lane(int worker) { return *lanes_[static_cast<size_t>(worker)]; }
  void make_lanes() {
    while (static_cast<int>(lanes_.size()) < pool_.num_threads()) {
      lanes_.push_back(std::make_unique<Backend>(path_, 1));
    }
  }
  // Outputs in a panel of weights on this path (tensor/panel.h).
  [[nodiscard]] int64_t panel_width() const {
    return path_ == CpuPath::kAvx512Bf16 || path_ == CpuPath::kAvx512 ? 64 : 16;
  }

 private:
  CpuPath path_;
  ThreadPool pool_;
  Scratch scratch_;
  std::vector<std::unique_ptr<Backend>> lanes_;
};

}  // namespace strata
