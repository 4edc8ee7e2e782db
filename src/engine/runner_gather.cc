// SPDX-License-Identifier: Apache-2.0
// What Runner gathers of the stages on rank 0: adapters, and what trains of all parameters.
#include <algorithm>
#include <array>

#include "base/check.h"
#include "engine/runner.h"
#include "ops/elementwise.h"

namespace strata::engine {
namespace {

std::vector<model::LoraModuleSpec> specs_of(const model::LoraAdapter& adapter) {
  std::vector<model::LoraModuleSpec> specs;
  for (const model::LoraModule& module : adapter.modules()) specs.push_back(module.spec);
  return specs;
}

// Of neighbouring modules values, gradients and moments, each module's A and then its B; the last
// three of what trains.
using AdapterParts = std::array<TensorView, 4>;

AdapterParts parts_of(const model::LoraAdapter& adapter, size_t first, int64_t count) {
  const int64_t offset = adapter.modules()[first].a_offset;
  AdapterParts parts = {adapter.parameters().part(offset, {count})};
  if (!adapter.trains()) return parts;
  parts[1] = adapter.gradients().part(offset, {count});
  parts[2] = adapter.first_moments().part(offset, {count});
  parts[3] = adapter.second_moments().part(offset, {count});
  return parts;
}

}  // namespace

// In pieces, each sent when it is asked for: what is on its way takes memory too.
void Runner::gather(int stage, TensorView from, TensorView to) {
  const int owner = rank_of(stage);
  if (!gathers()) return;
  if (owner == 0 && is_first_rank()) return ops::copy(engine().backend(), from, to);
  if (owner == 0 || (comm_.rank() != owner && !is_first_rank())) return;
  constexpr int64_t kValues = kGatherBytes / dtype_bytes(DType::kF32);
  const TensorView& whole = is_first_rank() ? to : from;
  const int64_t count = whole.shape.num_elements();
  for (int64_t first = 0; first < count; first += kValues) {
    const TensorView piece = whole.part(first, {std::min(kValues, count - first)});
    if (is_first_rank()) {
      comm_.send_bytes(owner, plan_.gather_tag(), nullptr, 0);
      comm_.receive(owner, plan_.gather_tag(), piece);
    } else {
      comm_.receive_bytes(0, plan_.gather_tag(), nullptr, 0);
      comm_.send(0, plan_.gather_tag(), piece);
    }
  }
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

const model::LoraAdapter* Runner::whole_adapter(api::AdapterSlot slot) {
  const model::LoraAdapter& own = engine().adapter(slot);
  if (!gathers()) return nullptr;
  if (plan_.num_stages() == 1) return &own;
  whole_ = is_first_rank() ? make_whole_adapter(own) : nullptr;
  const std::vector<model::LoraModule>& modules = own.modules();
  // Neighbours of one stage are one tensor, in its flat block as in the whole's.
  for (size_t first = 0, last = 0; first < modules.size(); first = last) {
    const int stage = stage_of_module(modules[first]);
    int64_t count = 0;
    for (; last < modules.size() && stage_of_module(modules[last]) == stage; ++last)
      count += modules[last].a.shape.num_elements() + modules[last].b.shape.num_elements();
    StageRunner* here = stage_here(stage);
    AdapterParts from, to;
    if (here != nullptr) from = parts_of(here->engine().adapter(slot), first, count);
    if (whole_) to = parts_of(*whole_, first, count);
    for (size_t part = 0; part < (own.trains() ? from.size() : 1); ++part) {
      gather(stage, from[part], to[part]);
    }
  }
  return whole_.get();
}

int Runner::stage_of_parameter(size_t index) {
  const model::ModelWeights& weights = *engine().model().weights;
  const model::Parameter& parameter = weights.table()[index];
  if (parameter.layer >= 0) return plan_.stage_of_layer(parameter.layer);
  return index == weights.embedding_index() ? 0 : plan_.num_stages() - 1;
}

namespace {

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

}  // namespace

void Runner::read_base(size_t index, BaseValues which, std::span<float> values) {
  read_base(index, engine().model().weights->table()[index].shape.num_elements(), which, values);
}

void Runner::read_base(BaseValues which, std::span<float> values) {
  const std::vector<model::Parameter>& table = engine().model().weights->table();
  const train::BaseTrainer& trainer = engine().base_trainer();
  const auto is_read = [&](size_t i) {
    return !table[i].buffer &&
           (which != BaseValues::kSecondMoments || trainer.has_second_moment(i));
  };
  // Neighbours of one stage are one tensor there.
  for (size_t first = 0, next = 0; first < table.size(); first = next) {
    next = first + 1;
    if (!is_read(first)) continue;
    int64_t count = table[first].shape.num_elements();
    const int stage = stage_of_parameter(first);
    for (; next < table.size() && (!is_read(next) || stage_of_parameter(next) == stage); ++next)
      count += is_read(next) ? table[next].shape.num_elements() : 0;
    const auto here = is_first_rank() ? static_cast<size_t>(count) : size_t{0};
    read_base(first, count, which, values.first(here));
    values = values.subspan(here);
  }
}

void Runner::read_base(size_t index, int64_t count, BaseValues which, std::span<float> values) {
  const int stage = stage_of_parameter(index);
  TensorView from;
  if (StageRunner* here = stage_here(stage)) {
    from = {values_of(here->engine().base_trainer(), which, index).data, DType::kF32, {count}};
  }
  if (!is_first_rank()) return gather(stage, from, {});
  CHECK(std::ssize(values) == count, values.size(), count);
  if (rank_of(stage) == 0) return ops::to_host(engine().backend(), from, values);
  gather(stage, from, TensorView(values.data(), DType::kF32, {count}));
}

}  // namespace strata::engine
