// SPDX-License-Identifier: Apache-2.0
// Any adapter directory: the input is adapter_config.json, a NUL, then adapter_model.safetensors.
// What is accepted must be consistent, and its config must survive being written and read again.
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/error.h"
#include "checkpoint/peft.h"
#include "tests/fuzz/fuzz_dir.h"

namespace {

void check_adapter(const strata::PeftAdapter& adapter) {
  for (const strata::PeftModule& module : adapter.modules()) {
    const int last = module.b.shape.rank() - 1;
    const int64_t rows = module.a.shape[last - 1];  // of every expert where they are fused
    CHECK(module.rank >= 1 && rows == module.b.shape[last] && rows % module.rank == 0);
    CHECK(module.form == strata::PeftForm::kFused || rows == module.rank);
    CHECK(adapter.file().find(module.a.name) != nullptr);
  }
  const strata::PeftConfig& config = adapter.config();
  const strata::PeftConfig again =
      strata::parse_peft_config(strata::peft_config_text(config), "again");
  CHECK(again.r == config.r && again.lora_alpha == config.lora_alpha);
  CHECK(again.rank_pattern == config.rank_pattern && again.alpha_pattern == config.alpha_pattern);
  CHECK(again.target_modules == config.target_modules);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const strata::fuzz::FuzzDir dir;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t split = std::min(input.find('\0'), size);
  dir.write("adapter_config.json", input.substr(0, split));
  dir.write("adapter_model.safetensors", input.substr(std::min(split + 1, size)));
  try {
    check_adapter(strata::PeftAdapter(dir.path()));
  } catch (const strata::Error&) {
  }
  return 0;
}
