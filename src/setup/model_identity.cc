// SPDX-License-Identifier: Apache-2.0
#include "setup/model_identity.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "base/rng.h"
#include "checkpoint/source.h"
#include "data/input_file.h"
#include "setup/model_files.h"
#include "setup/model_path.h"

namespace strata::apps {
namespace {

constexpr int64_t kMaxBytes = int64_t{256} << 20;
constexpr int64_t kPieces = 16;
constexpr int64_t kPieceBytes = 64;

uint64_t hash_of(const std::string& text) { return hash_name(text.data(), text.size()); }

std::string read_sampled_bytes(const CheckpointSource& checkpoint, const CheckpointTensor& tensor) {
  const int64_t bytes = tensor.info.num_bytes();
  const int64_t size = std::min(kPieceBytes, bytes);
  std::array<std::byte, kPieceBytes> piece = {};
  std::string out;
  for (int64_t i = 0; i < kPieces; ++i) {
    const int64_t first = (bytes - size) / (kPieces - 1) * i;
    checkpoint.read_bytes(tensor, first, std::span(piece).first(static_cast<size_t>(size)));
    out.append(reinterpret_cast<const char*>(piece.data()), static_cast<size_t>(size));
  }
  return out;
}

}  // namespace

std::string compute_model_identity(const ModelTexts& texts) {
  std::string all;
  for (const std::string_view name : model_file_names()) {
    const auto text = texts.find(name, kMaxBytes);
    if (text) all += fmt::format("{}={:016x};", name, hash_of(*text));
  }
  const std::unique_ptr<CheckpointSource> checkpoint = open_checkpoint(texts.where());
  for (const CheckpointTensor& tensor : checkpoint->tensors()) {
    all += fmt::format("{} {} {} {:016x};", tensor.info.name, tensor.info.dtype_name,
                       tensor.info.shape_text(), hash_of(read_sampled_bytes(*checkpoint, tensor)));
  }
  return fmt::format("{:016x}", hash_of(all));
}

std::string hash_adapter_or_model(const std::string& path) {
  if (!is_adapter_directory(path)) return compute_model_identity(open_texts(path));
  std::string all;
  for (const char* name : {"/adapter_config.json", "/adapter_model.safetensors"}) {
    all += fmt::format("{:016x}", data::hash_content(data::InputFile(path + name)));
  }
  return all;
}

}  // namespace strata::apps
