// SPDX-License-Identifier: Apache-2.0
// Any bytes as a GGUF file: an Error, or a file all of whose tensors can be read and all of whose
// texts can be made.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "checkpoint/gguf/gguf_source.h"
#include "tests/fuzz/fuzz_dir.h"

namespace {

constexpr int64_t kMostElements = 1 << 20;

void read_all(const strata::CheckpointSource& source) {
  for (const strata::CheckpointTensor& tensor : source.tensors()) {
    CHECK(source.find(tensor.info.name) == &tensor);
    if (!tensor.info.readable) continue;
    const int64_t count = std::min(kMostElements, tensor.info.shape.num_elements());
    std::vector<float> values(static_cast<size_t>(count));
    try {
      source.read_f32(tensor, 0, count, values.data());
      const strata::NarrowForm form = source.narrow_form(tensor);
      if (form == strata::NarrowForm::kNone || tensor.info.dims.back() > kMostElements) continue;
      const int64_t rows = count / tensor.info.dims.back();
      std::vector<std::byte> bytes(static_cast<size_t>(
          rows * strata::narrow_layout(form).row_bytes(tensor.info.dims.back())));
      source.read_quantised_rows(tensor, 0, rows, bytes.data());
    } catch (const strata::Error&) {
    }
  }
}

template <typename Body>
void attempt(Body body) {
  try {
    body();
  } catch (const strata::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const strata::fuzz::FuzzDir dir;
  dir.write("a.gguf", {reinterpret_cast<const char*>(data), size});
  const std::string path = dir.path() + "/a.gguf";
  attempt([&] { read_all(strata::GgufSource(path)); });
  attempt([&] {
    const strata::ModelTexts texts = strata::gguf_texts(path);
    for (const char* name :
         {"config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"}) {
      attempt([&] { static_cast<void>(texts.find(name, 1 << 28)); });
    }
  });
  return 0;
}
