// SPDX-License-Identifier: Apache-2.0
// Any bytes as a safetensors file, by itself and as the one of a model: an Error, or a file all of
// whose readable tensors can be read, in few bits too where they have a form of them.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "checkpoint/checkpoint_dir.h"
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

// What no form holds is an Error, and is found beforehand.
void read_rows_as_stored(const strata::CheckpointDir& model,
                         const strata::CheckpointTensor& tensor) {
  const strata::NarrowForm form = model.narrow_form(tensor);
  if (form == strata::NarrowForm::kNone) return;
  const bool fits = model.scan_for_unrepresentable_values(tensor, true).empty();
  const int64_t cols = tensor.info.dims.back();
  const int64_t rows = tensor.info.shape.num_elements() / std::max<int64_t>(1, cols);
  std::vector<std::byte> bytes(
      static_cast<size_t>(rows * strata::narrow_layout(form).row_bytes(cols)));
  try {
    model.read_quantised_rows(tensor, 0, rows, bytes.data());
  } catch (const strata::Error&) {
    CHECK(!fits, tensor.info.name);
  }
}

void read_all(const strata::CheckpointDir& model) {
  for (const strata::CheckpointTensor& tensor : model.tensors()) {
    CHECK(model.find(tensor.info.name) == &tensor);
    if (!tensor.info.readable) continue;
    const int64_t count = tensor.info.shape.num_elements();
    std::vector<float> values(static_cast<size_t>(count));
    model.read_f32(tensor, 0, count, values.data());
    read_rows_as_stored(model, tensor);
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
  dir.write("model.safetensors", {reinterpret_cast<const char*>(data), size});
  attempt([&] { read_all(strata::SafetensorsFile(dir.path() + "/model.safetensors"), size); });
  attempt([&] { read_all(strata::CheckpointDir(dir.path())); });
  return 0;
}
