// SPDX-License-Identifier: Apache-2.0
// Any text as model.safetensors.index.json beside two shards that are fine.
#include <cstdint>
#include <string>

#include "base/check.h"
#include "base/error.h"
#include "checkpoint/checkpoint_dir.h"
#include "tests/fuzz/fuzz_dir.h"

namespace {

strata::fuzz::FuzzDir make_dir() {
  strata::fuzz::FuzzDir dir;
  for (const char* name : {"a", "b"}) {
    const std::string header =
        std::string("{\"") + name + R"(":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}})";
    const uint64_t length = header.size();
    dir.write(name, std::string(reinterpret_cast<const char*>(&length), 8) + header + "1234");
  }
  return dir;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const strata::fuzz::FuzzDir dir = make_dir();
  dir.write("model.safetensors.index.json", {reinterpret_cast<const char*>(data), size});
  try {
    const strata::CheckpointDir checkpoint(dir.path());
    for (const strata::CheckpointTensor& tensor : checkpoint.tensors()) {
      uint16_t values[2];
      checkpoint.read(tensor, 0, 2, values);
      CHECK(checkpoint.find(tensor.info.name) == &tensor);
    }
    CHECK(checkpoint.layout().entries.size() == checkpoint.tensors().size());
  } catch (const strata::Error&) {
  }
  return 0;
}
