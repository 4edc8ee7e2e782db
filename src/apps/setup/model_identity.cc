#include "apps/setup/model_identity.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "apps/setup/model_files.h"
#include "base/files.h"
#include "base/rng.h"
#include "checkpoint/checkpoint_dir.h"

namespace strata::apps {
namespace {

constexpr int64_t kMaxBytes = int64_t{256} << 20;
constexpr int64_t kPieces = 16;
constexpr int64_t kPieceBytes = 64;

uint64_t hash_of(const std::string& text) { return hash_name(text.data(), text.size()); }

std::string pieces_of(const CheckpointDir& checkpoint, const CheckpointTensor& tensor) {
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

std::string model_identity(const std::string& dir) {
  std::string all;
  for (const std::string_view name : model_file_names()) {
    const std::string path = fmt::format("{}/{}", dir, name);
    if (!file_exists(path)) continue;
    all += fmt::format("{}={:016x};", name, hash_of(read_file(path, kMaxBytes)));
  }
  const CheckpointDir checkpoint(dir);
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    all += fmt::format("{} {} {} {:016x};", tensor.info.name, tensor.info.dtype_name,
                       tensor.info.shape_text(), hash_of(pieces_of(checkpoint, tensor)));
  }
  return fmt::format("{:016x}", hash_of(all));
}

}  // namespace strata::apps
