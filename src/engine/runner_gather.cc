// SPDX-License-Identifier: Apache-2.0
// What Runner gathers of the stages on rank 0: adapters, and what trains of all parameters.
#include <algorithm>
#include <array>

#include "base/check.h"
#include "engine/adapter_state.h"
#include "engine/pipeline/owners.h"
#include "engine/runner.h"
#include "ops/elementwise.h"

namespace strata::engine {
namespace {

constexpr int64_t kPieceValues = train::kPieceBytes / dtype_bytes(DType::kF32);

// Of neighbouring modules values, gradients and moments, each module's A and then its B; the last
// three of what trains.
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

TensorView values_of(const train::BaseTrainer& trainer, Runner::BaseValues which, size_t index) {
  switch (which) {
    case Runner::BaseValues::kGradients:
      return trainer.gradient(index);
    case Runner::BaseValues::kMasters:
      return trainer.master(index);
    case Runner::BaseValues::kFirstMoments:
      return trainer.first_moment(index);
    case Runner::BaseValues::kSecondMoments:
      return trainer.second_moment(index);
    case Runner::BaseValues::kRouterBias:
      return trainer.router_bias(index);
  }
  return {};
}

// Rows of masters that rank 0 asks their owner for; of none: it asks no more.
struct AskedRows {
  int64_t index = 0, first = 0, count = 0;
};

}  // namespace

void Runner::transfer_pieces(int from, int to, int64_t tag, size_t num_pieces, PieceView own,
                             PieceView place, FunctionRef<void(size_t piece, TensorView)> take) {
  if (all_.rank() == to) {
    if (from == to)
      copy_pieces(num_pieces, own, place, take);
    else
      request_and_take_pieces(from, tag, num_pieces, place, take);
  } else if (all_.rank() == from) {
    send_requested_pieces(to, tag, num_pieces, own);
  }
}

void Runner::copy_pieces(size_t num_pieces, PieceView own, PieceView place,
                         FunctionRef<void(size_t piece, TensorView)> take) {
  Backend& backend = engine().backend();
  for (size_t i = 0; i < num_pieces; ++i) {
    const Scratch::Mark mark(backend.scratch());
    const TensorView rows = place(i);
    ops::copy(backend, own(i), rows);
    take(i, rows);
  }
}

void Runner::request_and_take_pieces(int from, int64_t tag, size_t num_pieces, PieceView place,
                                     FunctionRef<void(size_t piece, TensorView)> take) {
  const auto request_one = [&] { everyone_.send_bytes(from, tag, nullptr, 0); };
  const size_t ahead = std::min(size_t{train::kPiecesAhead}, num_pieces);
  for (size_t i = 0; i < ahead; ++i) request_one();
  for (size_t i = 0; i < num_pieces; ++i) {
    const Scratch::Mark mark(engine().backend().scratch());
    const TensorView rows = place(i);
    everyone_.receive(from, tag, rows);
    take(i, rows);
    if (i + ahead < num_pieces) request_one();
  }
}

void Runner::send_requested_pieces(int to, int64_t tag, size_t num_pieces, PieceView own) {
  for (size_t i = 0; i < num_pieces; ++i) {
    const Scratch::Mark mark(engine().backend().scratch());
    everyone_.receive_bytes(to, tag, nullptr, 0);
    everyone_.send(to, tag, own(i));
  }
}

void Runner::gather_tensor(int owner, TensorView from, TensorView to) {
  const int64_t count = (is_first_rank() ? to : from).shape.num_elements();
  const auto part = [&](const TensorView& whole, size_t piece) {
    const int64_t first = static_cast<int64_t>(piece) * kPieceValues;
    return whole.part(first, {std::min(kPieceValues, count - first)});
  };
  transfer_pieces(
      owner, 0, plan_.gather_tag(), static_cast<size_t>((count + kPieceValues - 1) / kPieceValues),
      [&](size_t piece) { return part(from, piece); },
      [&](size_t piece) { return part(to, piece); }, [](size_t, TensorView) {});
}

std::unique_ptr<model::LoraAdapter> Runner::make_whole_adapter(const model::LoraAdapter& own) {
  auto whole = std::make_unique<model::LoraAdapter>(engine().backend(), *engine().model().weights,
                                                    specs_of(own), /*whole=*/true);
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

int Runner::stage_of_module(const model::LoraModule& module) const {
  if (module.spec.layer >= 0) return plan_.stage_of_layer(module.spec.layer);
  return module.is_embedding() ? 0 : plan_.num_stages() - 1;
}

const model::LoraAdapter* Runner::gather_adapter(api::AdapterSlot slot) {
  const model::LoraAdapter& own = engine().adapter(slot);
  if (!gathers()) return nullptr;
  if (plan_.num_stages() == 1) return &own;
  whole_ = is_first_rank() ? make_whole_adapter(own) : nullptr;
  const std::vector<model::LoraModule>& modules = own.modules();
  for (size_t first = 0, last = 0; first < modules.size(); first = last) {
    const int stage = stage_of_module(modules[first]);
    while (last < modules.size() && stage_of_module(modules[last]) == stage) ++last;
    gather_modules(slot, stage, first, last);
  }
  return whole_.get();
}

// Neighbours of one stage, which are one tensor in its flat block as in the whole's.
void Runner::gather_modules(api::AdapterSlot slot, int stage, size_t first, size_t last) {
  const model::LoraAdapter& own = engine().adapter(slot);
  int64_t count = 0;
  for (size_t i = first; i < last; ++i)
    count += own.modules()[i].a.shape.num_elements() + own.modules()[i].b.shape.num_elements();
  AdapterParts from, to;
  if (StageRunner* here = stage_here(stage))
    from = views_of_modules(here->engine().adapter(slot), first, count);
  if (whole_) to = views_of_modules(*whole_, first, count);
  for (size_t part = 0; part < (own.trains() ? from.size() : 1); ++part) {
    gather_tensor(owner_of(stage, 0), from[part], to[part]);
  }
}

int Runner::stage_of_parameter(size_t index) {
  const model::ModelWeights& weights = *engine().model().weights;
  const model::Parameter& parameter = weights.table()[index];
  if (parameter.layer >= 0) return plan_.stage_of_layer(parameter.layer);
  return index == weights.embedding_index() ? 0 : plan_.num_stages() - 1;
}

const train::Ownership& Runner::ownership_of_stage(int stage) {
  for (int s = static_cast<int>(ownerships_.size()); s < plan_.num_stages(); ++s)
    ownerships_.push_back(ownership_of(plan_, s, engine()));
  return ownerships_[static_cast<size_t>(stage)];
}

TensorView Runner::owned_values_here(size_t index, BaseValues which, int owner) {
  StageRunner* here = stage_here(stage_of_parameter(index));
  const int own = data_ ? data_->rank() : 0;
  if (here == nullptr || owner != own) return {};
  const TensorView values = values_of(here->engine().base_trainer(), which, index);
  return {values.data, DType::kF32, {values.shape.num_elements()}};
}

int64_t Runner::num_owned_values(size_t index, BaseValues which, int data) {
  if (which != BaseValues::kRouterBias)
    return ownership_of_stage(stage_of_parameter(index)).num_values(data, index);
  // Every rank of the stage has it: the first one's counts.
  return data == 0 ? engine().model().weights->table()[index].shape.num_elements() : 0;
}

void Runner::gather_owned_values(size_t index, BaseValues which, int data,
                                 FunctionRef<void(std::span<float>)> take) {
  const int stage = stage_of_parameter(index);
  const int64_t count = num_owned_values(index, which, data);
  const TensorView from = owned_values_here(index, which, data);
  std::vector<float> piece;
  for (int64_t first = 0; first < count; first += kPieceValues) {
    const Shape shape = {std::min(kPieceValues, count - first)};
    const TensorView own = from.empty() ? from : from.part(first, shape);
    piece.resize(is_first_rank() ? static_cast<size_t>(shape[0]) : 0);
    if (owner_of(stage, data) == 0 && is_first_rank()) {
      ops::to_host(engine().backend(), own, piece);
    } else {
      gather_tensor(owner_of(stage, data), own, TensorView(piece.data(), DType::kF32, shape));
    }
    if (is_first_rank()) take(piece);
  }
}

void Runner::gather_base_values(size_t index, BaseValues which, std::span<float> values) {
  auto to = values.begin();
  for (int data = 0; data < plan_.data; ++data) {
    gather_owned_values(index, which, data, [&](std::span<float> piece) {
      CHECK(std::ssize(piece) <= values.end() - to, index);
      to = std::copy(piece.begin(), piece.end(), to);
    });
  }
}

void Runner::gather_all_base_values(BaseValues which, FunctionRef<void(TensorView)> take) {
  const std::vector<model::Parameter>& table = engine().model().weights->table();
  for (size_t index = 0; index < table.size(); ++index) {
    if (table[index].buffer) continue;
    if (which == BaseValues::kSecondMoments && !engine().base_trainer().has_second_moment(index))
      continue;
    for (int data = 0; data < plan_.data; ++data) {
      gather_owned_values(index, which, data, [&](std::span<float> piece) {
        take(TensorView(piece.data(), DType::kF32, {std::ssize(piece)}));
      });
    }
  }
}

void Runner::run_with_masters_served(FunctionRef<void(ReadRows read)> body) {
  if (!is_first_rank()) return serve_masters();
  body([&](size_t index, int64_t first_row, TensorView rows) {
    read_masters(index, first_row, rows);
  });
  const AskedRows none;
  for (int other = 1; other < all_.size(); ++other)
    everyone_.send_bytes(other, plan_.gather_tag() + kAskTag, &none, sizeof(none));
}

void Runner::serve_masters() {
  for (;;) {
    AskedRows asked;
    everyone_.receive_bytes(0, plan_.gather_tag() + kAskTag, &asked, sizeof(asked));
    if (asked.count == 0) return;
    const auto index = static_cast<size_t>(asked.index);
    const int64_t cols = engine().model().weights->table()[index].num_cols();
    const TensorView own =
        owned_values_here(index, BaseValues::kMasters, data_ ? data_->rank() : 0);
    everyone_.send(0, plan_.gather_tag() + kRowsTag,
                   own.part(asked.first * cols, {asked.count * cols}));
  }
}

void Runner::read_masters(size_t index, int64_t first_row, TensorView rows) {
  const int stage = stage_of_parameter(index);
  const train::OwnedRows wanted = {first_row, rows.rows()};
  for (int data = 0; data < plan_.data; ++data) {
    const train::OwnedRows& owned = ownership_of_stage(stage).rows(data, index);
    const train::OwnedRows both = wanted.shared_with(owned);
    if (both.empty()) continue;
    const TensorView to =
        rows.part((both.first - first_row) * rows.cols(), {both.count * rows.cols()});
    const int64_t first = both.first - owned.first;  // of its own rows
    const int owner = owner_of(stage, data);
    if (owner == 0) {
      const TensorView own = owned_values_here(index, BaseValues::kMasters, data);
      ops::copy(engine().backend(), own.part(first * rows.cols(), to.shape), to);
      continue;
    }
    request_masters(owner, index, {first, both.count}, to);
  }
}

void Runner::request_masters(int owner, size_t index, const train::OwnedRows& rows, TensorView to) {
  const AskedRows asked = {static_cast<int64_t>(index), rows.first, rows.count};
  everyone_.send_bytes(owner, plan_.gather_tag() + kAskTag, &asked, sizeof(asked));
  everyone_.receive(owner, plan_.gather_tag() + kRowsTag, to);
}

void Runner::refresh_base_weights() {
  for (const auto& runner : runners_) {
    Engine& stage = runner->engine();
    if (stage.model().weights->shards() == nullptr)
      stage.base_trainer().refresh_weights(stage.backend(), *stage.model().weights);
    if (data_) exchange_parameters(*data_, stage);
  }
  send_embedding_to_last_stage();
}

}  // namespace strata::engine
