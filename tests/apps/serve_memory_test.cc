// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "apps/serve/memory.h"
#include "tests/base/temp_dir.h"

namespace strata::apps {
namespace {

// Mistral's folders have the same weights in one consolidated.safetensors too.
TEST(ServeMemory, CountsTheFilesOfACheckpointThatAreLoaded) {
  const testing::TempDir dir;
  const std::string bundled = std::string(STRATA_SOURCE_DIR) + "/models/tiny-qwen3/";
  for (const char* name : {"config.json", "model.safetensors"}) {
    std::filesystem::copy_file(bundled + name, dir.file(name));
  }
  std::filesystem::copy_file(bundled + "model.safetensors", dir.file("consolidated.safetensors"));
  const auto bytes =
      static_cast<int64_t>(std::filesystem::file_size(dir.file("model.safetensors")));
  const std::string paths[] = {dir.path()};
  check_weights_fit(paths, bytes);
  EXPECT_NE(testing::error_of([&] { check_weights_fit(paths, bytes - 1); }), "");
}

}  // namespace
}  // namespace strata::apps
