// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/state.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "text/json_reader.h"

namespace strata {
namespace {

constexpr std::string_view kTensors = "optimizer.safetensors";
constexpr std::string_view kJson = "state.json";

std::string recovered_path(const std::string& dir, std::string_view name) {
  recover_dir(dir);
  return fmt::format("{}/{}", dir, name);
}

const TensorInfo& require_f32_tensor(const SafetensorsFile& file, std::string_view name,
                                     const Shape& shape) {
  const TensorInfo* info = file.find(name);
  if (info == nullptr) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: tensor '{}' is missing; was it saved by a run with other options?",
                            file.path(), name));
  }
  if (!info->readable || info->dtype != DType::kF32 || info->shape != shape) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("{}: tensor '{}': {} {}, wanted F32 {}; was it saved by a run with other "
                    "options?",
                    file.path(), name, info->dtype_name, info->shape_text(), shape.to_string()));
  }
  return *info;
}

}  // namespace

TrainerStateWriter::TrainerStateWriter(const std::string& dir, std::vector<TensorDecl> tensors)
    : dir_(dir), writer_(dir_.file(kTensors), std::move(tensors)) {
  for (const TensorDecl& tensor : writer_.tensors()) {
    CHECK(tensor.dtype == DType::kF32, tensor.name);
  }
}

void TrainerStateWriter::append(std::string_view name, std::span<const float> values) {
  writer_.append_f32(name, values);
}

void TrainerStateWriter::append_view(std::string_view name, const TensorView& values) {
  writer_.append_view(name, values);
}

void TrainerStateWriter::commit(std::string_view json) {
  CHECK(static_cast<int64_t>(json.size()) <= kMaxStateBytes, json.size());
  writer_.commit();
  write_file_atomic(dir_.file(kJson), json);
  dir_.commit();
}

TrainerState::TrainerState(const std::string& dir)
    : json_(read_file(recovered_path(dir, kJson), kMaxStateBytes)),
      file_(fmt::format("{}/{}", dir, kTensors)) {
  text::JsonReader json(json_, fmt::format("{}/{}", dir, kJson));
  json.skip();
  json.end();
}

bool TrainerState::exists(const std::string& dir) {
  return file_exists(recovered_path(dir, kJson));
}

void TrainerState::read(std::string_view name, const Shape& shape, int64_t first, int64_t count,
                        float* out) const {
  file_.read(require_f32_tensor(file_, name, shape), first, count, out);
}

}  // namespace strata
