// SPDX-License-Identifier: Apache-2.0
// Any bytes as a safetensors file: an Error, or a file all of whose readable tensors can be read.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "tests/fuzz/fuzz_dir.h"

namespace {

void read_all(const strata::SafetensorsFile& file, size_t size) {
  int64_t bytes = 0;
  for (const strata::TensorInfo& info : file.tensors()) {
    CHECK(file.find(info.name) == &info);
    CHECK(!info.shape_text().empty());
    bytes += info.num_bytes();
    if (!info.readable) continue;
    const int64_t count = info.shape.num_elements();
    std::vector<float> values(static_cast<size_t>(count));
    file.read_f32(info, 0, count, values.data());
  }
  CHECK(bytes <= static_cast<int64_t>(size), bytes, size);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const strata::fuzz::FuzzDir dir;
  dir.write("a", {reinterpret_cast<const char*>(data), size});
  try {
    read_all(strata::SafetensorsFile(dir.path() + "/a"), size);
  } catch (const strata::Error&) {
  }
  return 0;
}
