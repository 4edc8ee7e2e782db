#include "apps/engine_setup.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"

namespace strata::apps {

DType parse_dtype(const std::string& text, const model::ModelConfig& config) {
  if (text == "f32") return DType::kF32;
  if (text == "bf16") return DType::kBF16;
  if (text == "auto") {
    return config.dtype.value_or(DType::kF32) == DType::kF32 ? DType::kF32 : DType::kBF16;
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--dtype: got '{}', want f32, bf16 or auto", text));
}

model::Recompute parse_recompute(const std::string& text) {
  if (text == "none") return model::Recompute::kNone;
  if (text == "full") return model::Recompute::kFull;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--recompute: got '{}', want none or full", text));
}

void check_device(const std::string& device) {
  if (device == "cpu") return;
  if (device == "cuda") {
    throw Error(ErrorCode::kUnsupported,
                "--device cuda: this build has no CUDA backend; use --device cpu");
  }
  throw Error(ErrorCode::kInvalidArgument, fmt::format("--device: got '{}', want cpu", device));
}

std::unique_ptr<engine::Engine> make_engine(const EngineSetup& setup,
                                            engine::EngineOptions options) {
  check_device(setup.device);
  options.recompute = parse_recompute(setup.recompute);
  options.threads = setup.threads;
  if (setup.threads < 0 || setup.threads > 4096) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--threads: got {}, want 0 (all cores) to 4096", setup.threads));
  }
  const model::ParsedConfig parsed = model::load_config(setup.model, setup.strict_config);
  const DType dtype = parse_dtype(setup.dtype, parsed.config);
  auto backend = std::make_unique<Backend>(choose_cpu_path(), setup.threads);
  model::LoadedModel model = model::load_model(
      *backend, setup.model, {.compute_dtype = dtype, .strict_config = setup.strict_config});
  for (const std::string& warning : model.warnings) log(LogLevel::kWarning, warning);
  return std::make_unique<engine::Engine>(std::move(backend), std::move(model), options);
}

}  // namespace strata::apps
