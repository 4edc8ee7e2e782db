#include "engine/adapter_state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cstring>

#include "base/error.h"
#include "base/files.h"
#include "checkpoint/peft.h"
#include "checkpoint/safetensors_writer.h"

namespace strata::engine {
namespace {

constexpr const char* kOptimizerFile = "/optimizer.safetensors";
constexpr const char* kFormat = "strata-adamw-1";
constexpr const char* kFirst = "first_moments";
constexpr const char* kSecond = "second_moments";

std::vector<model::LoraModuleSpec> specs_of(const model::LoraAdapter& adapter) {
  std::vector<model::LoraModuleSpec> specs;
  for (const model::LoraModule& module : adapter.modules()) specs.push_back(module.spec);
  return specs;
}

void copy(TensorView from, TensorView to) {
  CHECK(from.num_bytes() == to.num_bytes());
  std::memcpy(to.data, from.data, static_cast<size_t>(from.num_bytes()));
}

void save_optimizer(const model::LoraAdapter& adapter, const std::string& dir) {
  const Shape shape = {adapter.num_parameters()};
  SafetensorsWriter writer(dir + kOptimizerFile,
                           {{kFirst, DType::kF32, shape}, {kSecond, DType::kF32, shape}},
                           {{"format", kFormat}, {"step", std::to_string(adapter.step)}});
  writer.append_view(kFirst, adapter.first_moments());
  writer.append_view(kSecond, adapter.second_moments());
  writer.commit();
}

void load_optimizer(model::LoraAdapter& adapter, const std::string& dir) {
  const std::string path = dir + kOptimizerFile;
  const auto fail = [&](const std::string& what) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("load: {}: {}", path, what));
  };
  if (!file_exists(path)) fail("the checkpoint has no optimizer state");
  const SafetensorsFile file(path);
  const auto format = file.metadata().find("format");
  if (format == file.metadata().end() || format->second != kFormat)
    fail(fmt::format("not an optimizer state of this version ({})", kFormat));
  const auto step = file.metadata().find("step");
  const std::string text = step == file.metadata().end() ? "" : step->second;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), adapter.step);
  if (error != std::errc() || end != text.data() + text.size() || adapter.step < 0)
    fail(fmt::format("step: got '{}', want a count", text));
  for (const auto& [name, out] :
       {std::pair(kFirst, adapter.first_moments()), std::pair(kSecond, adapter.second_moments())}) {
    const TensorInfo* info = file.find(name);
    if (info == nullptr || !info->readable || !(info->shape == out.shape)) {
      fail(fmt::format("tensor '{}': got {}, want {}", name,
                       info == nullptr ? "none" : info->shape_text(), out.shape.to_string()));
    }
    file.read_f32(*info, 0, out.shape.num_elements(), out.f32());
  }
}

// The weights of `dir` into an adapter that has exactly its modules.
void load_weights(model::LoraAdapter& adapter, const std::string& dir) {
  const PeftAdapter peft(dir);
  std::vector<std::string> faults;
  std::map<std::string_view, const PeftModule*> saved;
  for (const PeftModule& module : peft.modules()) saved[module.module_path] = &module;
  for (model::LoraModule& module : adapter.modules()) {
    const auto found = saved.find(module.path);
    if (found == saved.end()) {
      faults.push_back(fmt::format("module '{}' is missing", module.path));
      continue;
    }
    const PeftModule& source = *found->second;
    saved.erase(found);
    if (!(source.a.shape == module.a.shape) || !(source.b.shape == module.b.shape)) {
      faults.push_back(fmt::format(
          "module '{}': saved with rank {} and A {}, the model has {} and {}", module.path,
          source.rank, source.a.shape_text(), module.spec.rank, module.a.shape.to_string()));
      continue;
    }
    peft.file().read_f32(source.a, 0, module.a.shape.num_elements(), module.a.f32());
    peft.file().read_f32(source.b, 0, module.b.shape.num_elements(), module.b.f32());
  }
  for (const auto& [path, module] : saved)
    faults.push_back(fmt::format("module '{}' is not trained by this model", path));
  if (faults.empty()) return;
  const size_t shown = std::min<size_t>(faults.size(), 3);
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("load: {}: {} module(s) do not fit the model: {}; other rank, train "
                  "flags or base model?",
                  dir, faults.size(),
                  fmt::join(faults.begin(), faults.begin() + static_cast<int64_t>(shown), "; ")));
}

}  // namespace

int64_t save_adapter_state(const Engine& engine, const model::LoraAdapter& adapter,
                           const std::string& dir, const std::string& base_model_name,
                           bool optimizer) {
  model::save_adapter(adapter, dir, base_model_name.empty() ? engine.model().dir : base_model_name);
  if (optimizer) save_optimizer(adapter, dir);
  int64_t bytes = 0;
  for (const char* name : {"/adapter_model.safetensors", "/adapter_config.json", kOptimizerFile}) {
    if (name == kOptimizerFile && !optimizer) continue;
    bytes += ReadOnlyFile(dir + name).size();
  }
  return bytes;
}

void load_adapter_state(Engine& engine, model::LoraAdapter& adapter, const std::string& dir,
                        bool optimizer) {
  model::LoraAdapter loaded(*engine.model().weights, specs_of(adapter),
                            engine.backend().panel_width());
  load_weights(loaded, dir);
  loaded.enable_training();
  if (optimizer) load_optimizer(loaded, dir);
  adapter.enable_training();
  copy(loaded.parameters(), adapter.parameters());
  copy(loaded.first_moments(), adapter.first_moments());
  copy(loaded.second_moments(), adapter.second_moments());
  adapter.step = loaded.step;
  adapter.drop_gradients();
  adapter.refresh(engine.backend());
}

std::unique_ptr<model::LoraAdapter> copy_adapter(Engine& engine, const model::LoraAdapter& from) {
  auto out = std::make_unique<model::LoraAdapter>(*engine.model().weights, specs_of(from),
                                                  engine.backend().panel_width());
  copy(from.parameters(), out->parameters());
  out->refresh(engine.backend());
  return out;
}

int64_t adapter_bytes(const Engine& engine, const std::vector<model::LoraModuleSpec>& specs,
                      bool trains) {
  int64_t parameters = 0;
  for (const model::LoraModuleSpec& spec : specs) {
    const auto [in, out] = model::module_widths(engine.config(), spec.kind, spec.layer);
    parameters += spec.rank * (in + out);
  }
  const int64_t copies = trains ? 4 : 1;  // masters; gradients and two moments
  const int64_t compute = dtype_bytes(engine.model().weights->compute_dtype());
  return parameters * (copies * dtype_bytes(DType::kF32) + compute);
}

}  // namespace strata::engine
