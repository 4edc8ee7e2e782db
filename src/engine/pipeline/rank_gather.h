// SPDX-License-Identifier: Apache-2.0
// RankGather: what the ranks' stages hold of an adapter, of all parameters that train, and of large
// results, put together on rank 0. All ranks make the same calls. Engine thread of its rank only.
#pragma once
#include <memory>
#include <span>

#include "api/batch.h"
#include "base/function_ref.h"
#include "model/adapter/lora.h"
#include "train/ownership.h"

namespace strata::engine {

class RankStages;
struct RowOwner;

// The values of base parameters that can be gathered.
enum class BaseValues { kGradients, kMasters, kFirstMoments, kSecondMoments, kRouterBias };

class RankGather {
 public:
  // Borrows the stages.
  explicit RankGather(RankStages& here) : here_(here) {}

  // Rank 0 gets the whole adapter, with gradients and moments where it trains, until the next call;
  // the others null.
  const model::LoraAdapter* adapter(api::AdapterSlot slot);
  // Fills `values` (the parameter's, dense) on rank 0; elsewhere it may be empty.
  void base_values(size_t index, BaseValues which, std::span<float> values);
  // All that has such values but routers' biases, in the table's order: rank 0 takes it piece by
  // piece.
  void all_base_values(BaseValues which, FunctionRef<void(TensorView)> take);
  // While rank 0's body runs, the others give it what it reads of masters, in any order.
  using ReadRows = FunctionRef<void(size_t index, int64_t first_row, TensorView rows)>;
  void run_with_masters_served(FunctionRef<void(ReadRows read)> body);
  // A tensor to rank 0 from one of all ranks; `from` matters there, `to` on rank 0.
  void tensor(int owner, TensorView from, TensorView to);

 private:
  std::unique_ptr<model::LoraAdapter> make_whole_adapter(const model::LoraAdapter& own);
  void gather_modules(api::AdapterSlot slot, int stage, size_t first, size_t last);
  [[nodiscard]] int stage_of_module(const model::LoraModule& module) const;
  [[nodiscard]] int64_t num_cols(size_t index);
  // Who gives a parameter's values, row by row.
  [[nodiscard]] std::vector<RowOwner> owners_of(size_t index, BaseValues which);
  // This rank's values of rows, the first of those that it has, flat.
  TensorView values_here(size_t index, BaseValues which, int64_t first, int64_t num_rows);
  // All of a parameter, piece after piece, on rank 0.
  void gather_values(size_t index, BaseValues which, FunctionRef<void(std::span<float>)> take);
  void serve_masters();
  // `rows` counts from the owner's first.
  void request_masters(int owner, size_t index, const train::OwnedRows& rows, TensorView to);
  void read_masters(size_t index, int64_t first_row, TensorView rows);

  RankStages& here_;
  std::unique_ptr<model::LoraAdapter> whole_;
};

}  // namespace strata::engine
