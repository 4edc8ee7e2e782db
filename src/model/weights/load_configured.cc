// SPDX-License-Identifier: Apache-2.0
#include "model/weights/load_configured.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace strata::model {

ParsedConfig read_config(const ModelTexts& texts, bool strict_config) {
  constexpr int64_t kMaxBytes = 16 << 20;
  constexpr std::string_view kName = "config.json";
  return parse_config(texts.read(kName, kMaxBytes), texts.where(kName), strict_config);
}

ParsedConfig load_config(const std::string& path, bool strict_config) {
  return read_config(open_texts(path), strict_config);
}

bool uses_mtp(const CheckpointSource& checkpoint, const ModelConfig& config, UseMtp use) {
  if (use == UseMtp::kNever) return false;
  const bool there =
      config.mtp_layer && std::any_of(checkpoint.tensors().begin(), checkpoint.tensors().end(),
                                      [](const CheckpointTensor& tensor) {
                                        const std::string_view name = tensor.info.name;
                                        return name.starts_with("mtp.") ||
                                               name.starts_with("model.mtp.");
                                      });
  if (there || use == UseMtp::kIfThere) return there;
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("load: no layer of multi-token prediction: {}",
                  config.mtp_layer
                      ? "the checkpoint has no tensor mtp.0.*; transformers does not save it"
                      : "config.json has none, or none that is known: that of DeepSeek-V4 "
                        "with a num_nextn_predict_layers of 1 is"));
}

}  // namespace strata::model
