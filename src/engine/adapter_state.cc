// SPDX-License-Identifier: Apache-2.0
#include "engine/adapter_state.h"

#include <fmt/format.h>

#include <charconv>

#include "base/error.h"
#include "base/files.h"
#include "checkpoint/safetensors_writer.h"
#include "model/adapter/export.h"
#include "ops/elementwise.h"
#include "ops/pack.h"

namespace strata::engine {
namespace {

constexpr const char* kOptimizerFile = "/optimizer.safetensors";
constexpr const char* kFormat = "strata-adamw-1";
constexpr const char* kFirst = "first_moments";
constexpr const char* kSecond = "second_moments";

void write_optimizer(const AdapterCopy& copy, const std::string& dir) {
  const Shape shape = {copy.weights->num_parameters()};
  SafetensorsWriter writer(dir + kOptimizerFile,
                           {{kFirst, DType::kF32, shape}, {kSecond, DType::kF32, shape}},
                           {{"format", kFormat}, {"step", std::to_string(copy.step)}});
  const auto view = [&](const std::vector<float>& values) {
    return TensorView(const_cast<float*>(values.data()), DType::kF32, shape);
  };
  writer.append_view(kFirst, view(copy.first_moments));
  writer.append_view(kSecond, view(copy.second_moments));
  writer.commit();
}

// Whether it is this part's, and no copy of another's.
bool is_own(const model::LoraModule& module) { return module.held() && !module.is_copy; }

// The shape of a module's values in the flat blocks: A, and B behind it.
Shape flat_shape(const model::LoraModule& module) {
  return {module.a.shape.num_elements() + module.b.shape.num_elements()};
}

std::vector<float> copy_to_vector(Engine& engine, TensorView view) {
  std::vector<float> values(static_cast<size_t>(view.shape.num_elements()));
  ops::to_host(engine.backend(), view, values);
  return values;
}

[[noreturn]] void refuse_file(const std::string& path, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("load: {}: {}", path, what));
}

void check_format(const SafetensorsFile& file, const std::string& path) {
  const auto format = file.metadata().find("format");
  if (format == file.metadata().end() || format->second != kFormat)
    refuse_file(path, fmt::format("not an optimizer state of this version ({})", kFormat));
}

int64_t read_step(const SafetensorsFile& file, const std::string& path) {
  const auto found = file.metadata().find("step");
  const std::string text = found == file.metadata().end() ? "" : found->second;
  int64_t step = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), step);
  if (error != std::errc() || end != text.data() + text.size() || step < 0)
    refuse_file(path, fmt::format("step: got '{}', want a count", text));
  return step;
}

std::vector<float> read_moments(const SafetensorsFile& file, const std::string& path,
                                const char* name, const Shape& shape) {
  const TensorInfo* info = file.find(name);
  if (info == nullptr || !info->readable || !(info->shape == shape)) {
    refuse_file(path,
                fmt::format("tensor '{}': got {}, want {}", name,
                            info == nullptr ? "none" : info->shape_text(), shape.to_string()));
  }
  std::vector<float> moments(static_cast<size_t>(shape.num_elements()));
  file.read_f32(*info, 0, shape.num_elements(), moments.data());
  return moments;
}

// `count`: of parameters.
void read_optimizer(const std::string& dir, int64_t count, AdapterCopy& copy) {
  const std::string path = dir + kOptimizerFile;
  if (!file_exists(path)) refuse_file(path, "the checkpoint has no optimizer state");
  const SafetensorsFile file(path);
  check_format(file, path);
  copy.step = read_step(file, path);
  copy.first_moments = read_moments(file, path, kFirst, {count});
  copy.second_moments = read_moments(file, path, kSecond, {count});
}

// A module's weights, and its moments if `moments`, from a stage's part to where the whole has it.
void copy_module(Backend& backend, const model::LoraAdapter& part, size_t index, bool moments,
                 model::LoraAdapter& whole, AdapterCopy& copy) {
  const model::LoraModule& module = whole.modules()[index];
  const Shape shape = flat_shape(module);
  const int64_t at = part.modules()[index].a_offset;
  ops::copy(backend, part.parameters().part(at, shape),
            whole.parameters().part(module.a_offset, shape));
  if (!moments) return;
  const auto values = [&](std::vector<float>& of) {
    return std::span(of).subspan(static_cast<size_t>(module.a_offset),
                                 static_cast<size_t>(shape.num_elements()));
  };
  ops::to_host(backend, part.first_moments().part(at, shape), values(copy.first_moments));
  ops::to_host(backend, part.second_moments().part(at, shape), values(copy.second_moments));
}

// The whole's moments to the parts of stages, in all of which modules stand in the whole's order.
void distribute_moments(const AdapterCopy& whole, std::vector<AdapterCopy>& parts) {
  int64_t at = 0;
  for (size_t i = 0; i < parts[0].weights->modules().size(); ++i) {
    for (AdapterCopy& part : parts) {
      const model::LoraModule& module = part.weights->modules()[i];
      if (!is_own(module)) continue;
      const int64_t end = at + flat_shape(module).num_elements();
      for (const auto& [from, to] : {std::pair(&whole.first_moments, &part.first_moments),
                                     std::pair(&whole.second_moments, &part.second_moments)})
        to->insert(to->end(), from->begin() + at, from->begin() + end);
      at = end;
    }
  }
}

int64_t count_values(const std::vector<model::LoraModule>& modules) {
  int64_t count = 0;
  for (const model::LoraModule& module : modules) count += flat_shape(module).num_elements();
  return count;
}

int64_t adapter_file_bytes(const std::string& dir) {
  return ReadOnlyFile(dir + "/adapter_model.safetensors").size() +
         ReadOnlyFile(dir + "/adapter_config.json").size();
}

}  // namespace

std::vector<model::LoraModuleSpec> specs_of(const model::LoraAdapter& adapter) {
  std::vector<model::LoraModuleSpec> specs;
  for (const model::LoraModule& module : adapter.modules()) specs.push_back(module.spec);
  return specs;
}

AdapterCopy copy_state(Engine& engine, const model::LoraAdapter& adapter) {
  CHECK(adapter.trains());
  return {.weights = copy_adapter(engine, adapter),
          .first_moments = copy_to_vector(engine, adapter.first_moments()),
          .second_moments = copy_to_vector(engine, adapter.second_moments()),
          .step = adapter.step};
}

AdapterCopy merge_adapter_parts(Backend& backend, Engine& first,
                                std::span<const model::LoraAdapter* const> parts, bool moments) {
  const model::LoraAdapter& own = *parts[0];
  auto whole = std::make_shared<model::LoraAdapter>(first.backend(), *first.model().weights,
                                                    specs_of(own), /*whole=*/true);
  AdapterCopy copy = {.step = own.step};
  if (moments) {
    copy.first_moments.resize(static_cast<size_t>(whole->num_parameters()));
    copy.second_moments.resize(static_cast<size_t>(whole->num_parameters()));
  }
  for (size_t i = 0; i < own.modules().size(); ++i) {
    for (const model::LoraAdapter* part : parts) {
      if (is_own(part->modules()[i])) copy_module(backend, *part, i, moments, *whole, copy);
    }
  }
  copy.weights = std::move(whole);
  return copy;
}

int64_t copy_bytes(const AdapterCopy& copy) {
  const size_t moments = copy.first_moments.size() + copy.second_moments.size();
  return copy.weights->num_bytes() + static_cast<int64_t>(moments * sizeof(float));
}

int64_t write_adapter_state(const AdapterCopy& copy, const std::string& dir,
                            const std::string& base_model_name,
                            const std::map<std::string, std::string>& metadata) {
  model::save_adapter(*copy.weights, dir, base_model_name, metadata);
  if (copy.first_moments.empty()) return adapter_file_bytes(dir);
  write_optimizer(copy, dir);
  return adapter_file_bytes(dir) + ReadOnlyFile(dir + kOptimizerFile).size();
}

int64_t export_adapter_files(const model::LoraAdapter& adapter, const std::string& dir,
                             const std::string& base_model_name,
                             const std::map<std::string, std::string>& metadata) {
  model::save_adapter_for_tinker(adapter, dir, base_model_name, metadata);
  return adapter_file_bytes(dir);
}

AdapterCopy read_adapter_state(Engine& engine, const std::vector<model::LoraModuleSpec>& specs,
                               const std::string& dir, bool optimizer, bool whole) {
  auto weights =
      std::make_shared<model::LoraAdapter>(engine.backend(), *engine.model().weights, specs, whole);
  model::load_adapter_weights(engine.model(), dir, *weights);
  AdapterCopy copy = {.weights = std::move(weights)};
  if (optimizer) read_optimizer(dir, copy.weights->num_parameters(), copy);
  return copy;
}

std::vector<AdapterCopy> read_adapter_parts(std::span<Engine* const> stages,
                                            const std::vector<model::LoraModuleSpec>& specs,
                                            const std::string& dir, bool optimizer) {
  std::vector<AdapterCopy> parts;
  const bool is_whole = stages.size() == 1;
  for (Engine* stage : stages)
    parts.push_back(read_adapter_state(*stage, specs, dir, optimizer && is_whole));
  if (!optimizer || is_whole) return parts;
  AdapterCopy whole;
  read_optimizer(dir, count_values(parts[0].weights->modules()), whole);
  distribute_moments(whole, parts);
  for (AdapterCopy& part : parts) part.step = whole.step;
  return parts;
}

void restore(Backend& backend, const AdapterCopy& copy, model::LoraAdapter& adapter) {
  adapter.enable_training();
  ops::copy(backend, copy.weights->parameters(), adapter.parameters());
  for (const auto& [from, to] : {std::pair(&copy.first_moments, adapter.first_moments()),
                                 std::pair(&copy.second_moments, adapter.second_moments())}) {
    if (from->empty()) {
      ops::fill_zero(backend, to);
    } else {
      ops::from_host(backend, *from, to);
    }
  }
  adapter.step = copy.step;
  adapter.drop_gradients();
  adapter.refresh(backend);
}

std::unique_ptr<model::LoraAdapter> copy_adapter(Engine& engine, const model::LoraAdapter& from) {
  auto out = std::make_unique<model::LoraAdapter>(engine.backend(), *engine.model().weights,
                                                  specs_of(from));
  ops::copy(engine.backend(), from.parameters(), out->parameters());
  out->refresh(engine.backend());
  return out;
}

int64_t adapter_bytes(const Engine& engine, const std::vector<model::LoraModuleSpec>& specs,
                      bool trains) {
  return model::adapter_bytes(*engine.model().weights, specs, ops::panel_width(engine.backend()),
                              trains);
}

}  // namespace strata::engine
