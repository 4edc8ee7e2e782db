// SPDX-License-Identifier: Apache-2.0
#include "apps/init.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/files.h"
#include "base/say.h"
#include "model/families/family.h"
#include "model/weights/init.h"
#include "model/weights/load.h"
#include "model/weights/save.h"
#include "report/format.h"
#include "setup/backend.h"
#include "setup/config_source.h"
#include "setup/load_spec.h"
#include "setup/model_files.h"

namespace strata::apps {
namespace {

DType stored_dtype(const std::string& text, const model::ModelConfig& config) {
  if (text == "auto") return config.dtype.value_or(DType::kF32);
  return parse_dtype(text, config);
}

void check_has_mtp(const model::ModelConfig& config, const std::string& where) {
  if (config.mtp_layer) return;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("--mtp: {}: {} has no layer of multi-token prediction that is supported",
                          where, config.architecture));
}

void check_has_no_model(const std::string& folder) {
  if (!file_exists(folder + "/model.safetensors") &&
      !file_exists(folder + "/model.safetensors.index.json"))
    return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--out: {} holds a model already; choose another folder", folder));
}

}  // namespace

int run_init(const InitOptions& options) {
  ignore_closed_pipes();
  ConfigSource source = read_config_source("config", options.config);
  // A multimodal model is made as its text model alone: no other part is known here.
  source.json = model::extract_text_model_config(source.json, source.where);
  model::ParsedConfig parsed = model::parse_config(source.json, source.where, /*strict=*/false);
  if (options.mtp) check_has_mtp(parsed.config, source.where);
  parsed.config.use_mtp = options.mtp;
  const DType dtype = stored_dtype(options.dtype, parsed.config);
  check_has_no_model(options.out);
  make_folders(options.out);
  const std::unique_ptr<Backend> own = make_backend(options.threads);
  Backend& backend = *own;
  // Drawn and rounded once, to the stored type: the same weights on every CPU path.
  const model::LoadedModel model =
      model::init_model(backend, parsed.config, DType::kF32, options.seed);
  model::save_model(backend, model, options.out, /*trained=*/nullptr, dtype);
  if (!source.dir.empty()) copy_model_files_as_unquantized(source.texts, options.out);
  write_file_atomic(options.out + "/config.json", without_quantization(source.json, source.where));
  say(fmt::format("{}: {} parameters as {}, seed {}\n", options.out,
                  report::format_count(static_cast<double>(model.weights->num_parameters())),
                  dtype_name(dtype), options.seed));
  return 0;
}

}  // namespace strata::apps
