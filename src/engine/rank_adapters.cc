// SPDX-License-Identifier: Apache-2.0
#include "engine/rank_adapters.h"

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "model/expert_ranks.h"
#include "model/tensor_ranks.h"
#include "ops/elementwise.h"

namespace strata::engine {
namespace {

// Work of a pipeline has ended by then, so its tags are free.
constexpr int64_t kTag = 0;

// A module's values: where they are in a flat block, A and B behind it.
struct FlatPart {
  int64_t first = 0;
  int64_t count = 0;
};

FlatPart flat_part(const model::LoraModule& module) {
  return {module.a_offset, module.a.shape.num_elements() + module.b.shape.num_elements()};
}

// Copies of the embedding's module, for multi-token prediction, are made where they are.
bool is_own(const model::LoraModule& module) { return module.held() && !module.is_copy; }

// Which modules are a rank's own, one letter each.
std::string own_modules(const model::LoraAdapter& part) {
  std::string own;
  for (const model::LoraModule& module : part.modules()) own += is_own(module) ? 'y' : 'n';
  return own;
}

// Tensor and expert ranks all have the same modules, of which the first one's are gathered.
bool gives_modules(const Engine& engine) {
  const model::TensorRanks* const of_matrices = engine.model().weights->tensor_ranks();
  const model::ExpertRanks* const of_experts = engine.model().weights->expert_ranks();
  return (of_matrices == nullptr || of_matrices->share().rank == 0) &&
         (of_experts == nullptr || of_experts->share().rank == 0);
}

// The letters of each rank, on rank 0; elsewhere nothing.
std::vector<std::string> gather_letters(Comm& comm, std::string own) {
  if (comm.rank() != 0) {
    comm.send_bytes(0, kTag, own.data(), std::ssize(own));
    return {};
  }
  std::vector<std::string> all = {own};
  for (int other = 1; other < comm.size(); ++other) {
    comm.receive_bytes(other, kTag, own.data(), std::ssize(own));
    all.push_back(own);
  }
  return all;
}

TensorView view_of(std::span<float> values, const FlatPart& part) {
  return {values.data() + part.first, DType::kF32, {part.count}};
}

void copy_own_modules(Engine& engine, const model::LoraAdapter& part, bool moments,
                      model::LoraAdapter& whole, AdapterCopy& copy) {
  for (size_t i = 0; i < part.modules().size(); ++i) {
    if (!is_own(part.modules()[i])) continue;
    const FlatPart from = flat_part(part.modules()[i]), to = flat_part(whole.modules()[i]);
    ops::copy(engine.backend(), part.parameters().part(from.first, {from.count}),
              whole.parameters().part(to.first, {to.count}));
    if (!moments) continue;
    const auto values = [&](std::vector<float>& of) {
      return std::span(of).subspan(static_cast<size_t>(to.first), static_cast<size_t>(to.count));
    };
    ops::to_host(engine.backend(), part.first_moments().part(from.first, {from.count}),
                 values(copy.first_moments));
    ops::to_host(engine.backend(), part.second_moments().part(from.first, {from.count}),
                 values(copy.second_moments));
  }
}

// A module at a time, each when rank 0 asks for it, so that little is on its way.
void send_own_modules(Comm& comm, const model::LoraAdapter& part, bool moments) {
  for (const model::LoraModule& module : part.modules()) {
    if (!is_own(module)) continue;
    const FlatPart of = flat_part(module);
    comm.receive_bytes(0, kTag, nullptr, 0);
    comm.send(0, kTag, part.parameters().part(of.first, {of.count}));
    if (!moments) continue;
    comm.send(0, kTag, part.first_moments().part(of.first, {of.count}));
    comm.send(0, kTag, part.second_moments().part(of.first, {of.count}));
  }
}

void receive_modules(Comm& comm, int from, const std::string& theirs, bool moments,
                     model::LoraAdapter& whole, AdapterCopy& copy) {
  for (size_t i = 0; i < theirs.size(); ++i) {
    if (theirs[i] != 'y') continue;
    const FlatPart to = flat_part(whole.modules()[i]);
    comm.send_bytes(from, kTag, nullptr, 0);
    comm.receive(from, kTag, whole.parameters().part(to.first, {to.count}));
    if (!moments) continue;
    comm.receive(from, kTag, view_of(copy.first_moments, to));
    comm.receive(from, kTag, view_of(copy.second_moments, to));
  }
}

void resize_moments(const model::LoraAdapter& adapter, AdapterCopy& copy) {
  copy.first_moments.resize(static_cast<size_t>(adapter.num_parameters()));
  copy.second_moments.resize(static_cast<size_t>(adapter.num_parameters()));
}

// What rank 0 sends of a module, when it is asked for it.
void send_modules(Comm& comm, int to, const std::string& theirs, bool moments,
                  const AdapterCopy& whole) {
  for (size_t i = 0; i < theirs.size(); ++i) {
    if (theirs[i] != 'y') continue;
    const FlatPart of = flat_part(whole.weights->modules()[i]);
    comm.receive_bytes(to, kTag, nullptr, 0);
    comm.send(to, kTag, whole.weights->parameters().part(of.first, {of.count}));
    if (!moments) continue;
    for (const std::vector<float>* values : {&whole.first_moments, &whole.second_moments})
      comm.send_bytes(to, kTag, values->data() + of.first,
                      of.count * static_cast<int64_t>(sizeof(float)));
  }
}

void receive_own_modules(Comm& comm, bool moments, model::LoraAdapter& part, AdapterCopy& copy) {
  for (const model::LoraModule& module : part.modules()) {
    if (!is_own(module)) continue;
    const FlatPart of = flat_part(module);
    comm.send_bytes(0, kTag, nullptr, 0);
    comm.receive(0, kTag, part.parameters().part(of.first, {of.count}));
    if (!moments) continue;
    comm.receive(0, kTag, view_of(copy.first_moments, of));
    comm.receive(0, kTag, view_of(copy.second_moments, of));
  }
}

void copy_from_whole(Engine& engine, const AdapterCopy& whole, bool moments,
                     model::LoraAdapter& part, AdapterCopy& copy) {
  for (size_t i = 0; i < part.modules().size(); ++i) {
    if (!is_own(part.modules()[i])) continue;
    const FlatPart from = flat_part(whole.weights->modules()[i]);
    const FlatPart to = flat_part(part.modules()[i]);
    ops::copy(engine.backend(), whole.weights->parameters().part(from.first, {from.count}),
              part.parameters().part(to.first, {to.count}));
    if (!moments) continue;
    std::copy_n(whole.first_moments.begin() + from.first, from.count,
                copy.first_moments.begin() + to.first);
    std::copy_n(whole.second_moments.begin() + from.first, from.count,
                copy.second_moments.begin() + to.first);
  }
}

}  // namespace

AdapterCopy gather_adapter(Comm& comm, Engine& engine, const model::LoraAdapter& part,
                           bool moments) {
  const bool gives = gives_modules(engine);
  const std::vector<std::string> own =
      gather_letters(comm, gives ? own_modules(part) : std::string(part.modules().size(), 'n'));
  if (comm.rank() != 0) {
    if (gives) send_own_modules(comm, part, moments);
    return {};
  }
  auto whole = std::make_shared<model::LoraAdapter>(engine.backend(), *engine.model().weights,
                                                    specs_of(part), /*whole=*/true);
  AdapterCopy copy = {.step = part.step};
  if (moments) resize_moments(*whole, copy);
  copy_own_modules(engine, part, moments, *whole, copy);
  for (int other = 1; other < comm.size(); ++other)
    receive_modules(comm, other, own[static_cast<size_t>(other)], moments, *whole, copy);
  copy.weights = std::move(whole);
  return copy;
}

void broadcast_specs(Comm& comm, std::vector<model::LoraModuleSpec>& specs) {
  static_assert(std::is_trivially_copyable_v<model::LoraModuleSpec>);
  auto count = std::ssize(specs);
  const auto bytes = [&] { return count * static_cast<int64_t>(sizeof(specs[0])); };
  if (comm.rank() != 0) {
    comm.receive_bytes(0, kTag, &count, sizeof(count));
    specs.resize(static_cast<size_t>(count));
    return comm.receive_bytes(0, kTag, specs.data(), bytes());
  }
  for (int other = 1; other < comm.size(); ++other) {
    comm.send_bytes(other, kTag, &count, sizeof(count));
    comm.send_bytes(other, kTag, specs.data(), bytes());
  }
}

AdapterCopy scatter_adapter(Comm& comm, Engine& engine, const AdapterCopy& whole,
                            const std::vector<model::LoraModuleSpec>& specs, bool moments) {
  auto part =
      std::make_shared<model::LoraAdapter>(engine.backend(), *engine.model().weights, specs);
  AdapterCopy copy = {.step = whole.step};
  if (moments) resize_moments(*part, copy);
  const std::vector<std::string> own = gather_letters(comm, own_modules(*part));
  if (comm.rank() != 0) {
    comm.receive_bytes(0, kTag, &copy.step, sizeof(copy.step));
    receive_own_modules(comm, moments, *part, copy);
  } else {
    copy_from_whole(engine, whole, moments, *part, copy);
    for (int other = 1; other < comm.size(); ++other) {
      comm.send_bytes(other, kTag, &whole.step, sizeof(whole.step));
      send_modules(comm, other, own[static_cast<size_t>(other)], moments, whole);
    }
  }
  copy.weights = std::move(part);
  return copy;
}

}  // namespace strata::engine
