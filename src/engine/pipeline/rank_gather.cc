// SPDX-License-Identifier: Apache-2.0
#include "engine/pipeline/rank_gather.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "engine/adapter_state.h"
#include "engine/pipeline/rank_stages.h"
#include "ops/elementwise.h"

namespace strata::engine {
namespace {

constexpr int64_t kPieceValues = train::kPieceBytes / dtype_bytes(DType::kF32);

// Values, gradients and the two moments of neighbouring modules, each module's A and then its B.
// What does not train has values alone.
using AdapterParts = std::array<TensorView, 4>;

AdapterParts views_of_modules(const model::LoraAdapter& adapter, size_t first, int64_t count) {
  const int64_t offset = adapter.modules()[first].a_offset;
  AdapterParts parts = {adapter.parameters().part(offset, {count})};
  if (!adapter.trains()) return parts;
  parts[1] = adapter.gradients().part(offset, {count});
  parts[2] = adapter.first_moments().part(offset, {count});
  parts[3] = adapter.second_moments().part(offset, {count});
  return parts;
}

TensorView values_of(const train::BaseTrainer& trainer, BaseValues which, size_t index) {
  switch (which) {
    case BaseValues::kGradients:
      return trainer.gradient(index);
    case BaseValues::kMasters:
      return trainer.master(index);
    case BaseValues::kFirstMoments:
      return trainer.first_moment(index);
    case BaseValues::kSecondMoments:
      return trainer.second_moment(index);
    case BaseValues::kRouterBias:
      return trainer.router_bias(index);
  }
  return {};
}

// Rows of masters that rank 0 asks their owner for; a count of zero ends it.
struct AskedRows {
  int64_t index = 0, first = 0, count = 0;
};

}  // namespace

void RankGather::tensor(int owner, TensorView from, TensorView to) {
  const int64_t count = (here_.is_first_rank() ? to : from).shape.num_elements();
  const auto part = [&](const TensorView& whole, size_t piece) {
    const int64_t first = static_cast<int64_t>(piece) * kPieceValues;
    return whole.part(first, {std::min(kPieceValues, count - first)});
  };
  here_.transfer_pieces(
      owner, 0, here_.plan().gather_tag(),
      static_cast<size_t>((count + kPieceValues - 1) / kPieceValues),
      [&](size_t piece) { return part(from, piece); },
      [&](size_t piece) { return part(to, piece); }, [](size_t, TensorView) {});
}

std::unique_ptr<model::LoraAdapter> RankGather::make_whole_adapter(const model::LoraAdapter& own) {
  auto whole = std::make_unique<model::LoraAdapter>(
      here_.engine().backend(), *here_.engine().model().weights, specs_of(own), /*whole=*/true);
  for (size_t i = 0; i < own.modules().size(); ++i) {
    model::LoraModule& module = whole->modules()[i];
    module.a_name = own.modules()[i].a_name;
    module.b_name = own.modules()[i].b_name;
    module.form = own.modules()[i].form;
  }
  if (own.trains()) whole->enable_training();
  whole->step = own.step;
  return whole;
}

int RankGather::stage_of_module(const model::LoraModule& module) const {
  if (module.spec.layer >= 0) return here_.plan().stage_of_layer(module.spec.layer);
  return module.is_before_layers() ? 0 : here_.plan().num_stages() - 1;
}

const model::LoraAdapter* RankGather::adapter(api::AdapterSlot slot) {
  const model::LoraAdapter& own = here_.engine().adapter(slot);
  if (!here_.gathers()) return nullptr;
  if (here_.plan().num_stages() == 1) return &own;
  whole_ = here_.is_first_rank() ? make_whole_adapter(own) : nullptr;
  const std::vector<model::LoraModule>& modules = own.modules();
  for (size_t first = 0, last = 0; first < modules.size(); first = last) {
    const int stage = stage_of_module(modules[first]);
    while (last < modules.size() && stage_of_module(modules[last]) == stage) ++last;
    gather_modules(slot, stage, first, last);
  }
  return whole_.get();
}

// Neighbours of one stage, which are one tensor in its flat block as in the whole's.
void RankGather::gather_modules(api::AdapterSlot slot, int stage, size_t first, size_t last) {
  const model::LoraAdapter& own = here_.engine().adapter(slot);
  int64_t count = 0;
  for (size_t i = first; i < last; ++i)
    count += own.modules()[i].a.shape.num_elements() + own.modules()[i].b.shape.num_elements();
  AdapterParts from, to;
  if (StageRunner* here = here_.find(stage))
    from = views_of_modules(here->engine().adapter(slot), first, count);
  if (whole_) to = views_of_modules(*whole_, first, count);
  for (size_t part = 0; part < (own.trains() ? from.size() : 1); ++part) {
    tensor(here_.owner_of(stage, 0), from[part], to[part]);
  }
}

int64_t RankGather::num_cols(size_t index) {
  return here_.engine().model().weights->table()[index].num_cols();
}

std::vector<RowOwner> RankGather::owners_of(size_t index, BaseValues which) {
  if (which != BaseValues::kRouterBias) return here_.owners_of_parameter(index);
  // Every rank of the stage has it: the first one's counts.
  return {{.rank = here_.owner_of(here_.stage_of_parameter(index), 0), .rows = {0, 1}}};
}

TensorView RankGather::values_here(size_t index, BaseValues which, int64_t first,
                                   int64_t num_rows) {
  StageRunner& here = *here_.find(here_.stage_of_parameter(index));
  const TensorView values = values_of(here.engine().base_trainer(), which, index);
  const TensorView flat(values.data, DType::kF32, {values.shape.num_elements()});
  return flat.part(first * num_cols(index), {num_rows * num_cols(index)});
}

void RankGather::gather_values(size_t index, BaseValues which,
                               FunctionRef<void(std::span<float>)> take) {
  std::vector<float> piece;
  for (const RowOwner& owner : owners_of(index, which)) {
    const bool is_here = owner.rank == here_.all().rank();
    const TensorView from =
        is_here ? values_here(index, which, owner.first, owner.rows.count) : TensorView();
    const int64_t count = owner.rows.count * num_cols(index);
    for (int64_t first = 0; first < count; first += kPieceValues) {
      const Shape shape = {std::min(kPieceValues, count - first)};
      const TensorView own = is_here ? from.part(first, shape) : from;
      piece.resize(here_.is_first_rank() ? static_cast<size_t>(shape[0]) : 0);
      if (is_here && here_.is_first_rank()) {
        ops::to_host(here_.engine().backend(), own, piece);
      } else {
        tensor(owner.rank, own, TensorView(piece.data(), DType::kF32, shape));
      }
      if (here_.is_first_rank()) take(piece);
    }
  }
}

void RankGather::base_values(size_t index, BaseValues which, std::span<float> values) {
  auto to = values.begin();
  gather_values(index, which, [&](std::span<float> piece) {
    CHECK(std::ssize(piece) <= values.end() - to, index);
    to = std::copy(piece.begin(), piece.end(), to);
  });
}

void RankGather::all_base_values(BaseValues which, FunctionRef<void(TensorView)> take) {
  const std::vector<model::Parameter>& table = here_.engine().model().weights->table();
  for (size_t index = 0; index < table.size(); ++index) {
    if (table[index].buffer) continue;
    if (which == BaseValues::kSecondMoments &&
        !here_.engine().base_trainer().has_second_moment(index))
      continue;
    gather_values(index, which, [&](std::span<float> piece) {
      take(TensorView(piece.data(), DType::kF32, {std::ssize(piece)}));
    });
  }
}

void RankGather::run_with_masters_served(FunctionRef<void(ReadRows read)> body) {
  if (!here_.is_first_rank()) return serve_masters();
  body([&](size_t index, int64_t first_row, TensorView rows) {
    read_masters(index, first_row, rows);
  });
  const AskedRows none;
  for (int other = 1; other < here_.all().size(); ++other)
    here_.everyone().send_bytes(other, here_.plan().gather_tag() + kAskTag, &none, sizeof(none));
}

void RankGather::serve_masters() {
  for (;;) {
    AskedRows asked;
    here_.everyone().receive_bytes(0, here_.plan().gather_tag() + kAskTag, &asked, sizeof(asked));
    if (asked.count == 0) return;
    const auto index = static_cast<size_t>(asked.index);
    here_.everyone().send(0, here_.plan().gather_tag() + kRowsTag,
                          values_here(index, BaseValues::kMasters, asked.first, asked.count));
  }
}

void RankGather::read_masters(size_t index, int64_t first_row, TensorView rows) {
  const train::OwnedRows wanted = {first_row, rows.rows()};
  for (const RowOwner& owner : owners_of(index, BaseValues::kMasters)) {
    const train::OwnedRows both = wanted.shared_with(owner.rows);
    if (both.empty()) continue;
    const TensorView to =
        rows.part((both.first - first_row) * rows.cols(), {both.count * rows.cols()});
    const int64_t first = owner.first + both.first - owner.rows.first;  // of its own rows
    if (owner.rank == 0) {
      const TensorView own = values_here(index, BaseValues::kMasters, first, both.count);
      ops::copy(here_.engine().backend(), own, to);
      continue;
    }
    request_masters(owner.rank, index, {first, both.count}, to);
  }
}

void RankGather::request_masters(int owner, size_t index, const train::OwnedRows& rows,
                                 TensorView to) {
  const AskedRows asked = {static_cast<int64_t>(index), rows.first, rows.count};
  here_.everyone().send_bytes(owner, here_.plan().gather_tag() + kAskTag, &asked, sizeof(asked));
  here_.everyone().receive(owner, here_.plan().gather_tag() + kRowsTag, to);
}

}  // namespace strata::engine
