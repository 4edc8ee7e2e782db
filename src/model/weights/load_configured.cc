// SPDX-License-Identifier: Apache-2.0
#include "model/weights/load_configured.h"

namespace strata::model {

ParsedConfig read_config(const ModelTexts& texts, bool strict_config) {
  constexpr int64_t kMaxBytes = 16 << 20;
  constexpr std::string_view kName = "config.json";
  return parse_config(texts.read(kName, kMaxBytes), texts.where(kName), strict_config);
}

ParsedConfig load_config(const std::string& path, bool strict_config) {
  return read_config(open_texts(path), strict_config);
}

}  // namespace strata::model
