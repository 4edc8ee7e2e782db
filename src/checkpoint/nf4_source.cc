// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/nf4_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "checkpoint/narrow_scale.h"
#include "checkpoint/nf4.h"
#include "tensor/rounded.h"

namespace strata {
namespace {

constexpr int64_t kElementsAtOnce = int64_t{1} << 20;
static_assert(kElementsAtOnce % kNf4Block == 0);

TensorInfo as_nf4(TensorInfo info) {
  info.dtype_name = "nf4";
  info.dtype = DType::kF32;
  info.begin = 0;
  info.end = (info.shape.num_elements() + 1) / 2;  // of codes, as files of bitsandbytes have them
  return info;
}

[[noreturn]] void refuse_scale(const std::string& name, int64_t row, float scale) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("tensor '{}': row {} has a value of {}, with which weights have no place "
                          "in 4 bits",
                          name, row, scale));
}

// The values of a block become those that their codes stand for; its scale is finite.
void round_to_nf4(std::span<float> block, float scale, DType dtype) {
  std::array<std::byte, kNf4Block> codes;
  quantise_to_nf4(block, scale, codes);
  for (size_t i = 0; i < block.size(); ++i)
    block[i] = rounded_to(nf4_values()[static_cast<size_t>(codes[i])] * scale, dtype);
}

// A row of whole blocks in NarrowForm::kNf4; the first scale that this does not hold, or nothing.
std::optional<float> pack_row(std::span<const float> values, std::span<std::byte> out) {
  std::vector<float> scales;
  for (size_t begin = 0; begin < values.size(); begin += kNf4Block) {
    const auto block = values.subspan(begin, kNf4Block);
    scales.push_back(nf4_scale(block));
    quantise_to_nf4(block, scales.back(), out.subspan(begin));
  }
  const auto scale_at = [&](int64_t col) { return scales[static_cast<size_t>(col / kNf4Block)]; };
  return pack_row_scales(scale_at, kNf4Block, std::ssize(values), out.subspan(values.size()));
}

}  // namespace

Nf4Source::Nf4Source(std::unique_ptr<CheckpointSource> base, const std::set<std::string>& names)
    : CheckpointSource(base->path()), base_(std::move(base)), quantised_(names) {
  shard_names_.assign(base_->shards().begin(), base_->shards().end());
  for (const CheckpointTensor& tensor : base_->tensors()) {
    CheckpointTensor seen = tensor;
    if (quantised_.contains(tensor.info.name)) {
      const TensorInfo& info = tensor.info;
      CHECK(info.readable && info.dtype_name == dtype_name(info.dtype), info.name, info.dtype_name);
      seen.info = as_nf4(info);
    }
    add(std::move(seen));
  }
}

const CheckpointTensor& Nf4Source::in_base(const CheckpointTensor& tensor) const {
  const CheckpointTensor* found = base_->find(tensor.info.name);
  CHECK(found != nullptr, tensor.info.name);
  return *found;
}

bool Nf4Source::is_quantised(const CheckpointTensor& tensor) const {
  return quantised_.contains(tensor.info.name);
}

std::vector<float> Nf4Source::read_from_base(const CheckpointTensor& tensor, int64_t first_element,
                                             int64_t count) const {
  std::vector<float> values(static_cast<size_t>(count));
  base_->read_f32(in_base(tensor), first_element, count, values.data());
  return values;
}

std::vector<float> Nf4Source::read_rounded_blocks(const CheckpointTensor& tensor,
                                                  int64_t first_element, int64_t count) const {
  std::vector<float> values = read_from_base(tensor, first_element, count);
  for (int64_t begin = 0; begin < count; begin += kNf4Block) {
    const auto block = std::span(values).subspan(
        static_cast<size_t>(begin), static_cast<size_t>(std::min(kNf4Block, count - begin)));
    const float scale = nf4_scale(block);
    if (!std::isfinite(scale)) {
      refuse_scale(tensor.info.name, (first_element + begin) / tensor.info.shape[1], scale);
    }
    round_to_nf4(block, scale, in_base(tensor).info.dtype);
  }
  return values;
}

void Nf4Source::read(const CheckpointTensor& tensor, int64_t first_element, int64_t count,
                     void* raw_out) const {
  if (!is_quantised(tensor)) return base_->read(in_base(tensor), first_element, count, raw_out);
  read_f32(tensor, first_element, count, static_cast<float*>(raw_out));
}

void Nf4Source::read_f32(const CheckpointTensor& tensor, int64_t first_element, int64_t count,
                         float* out) const {
  if (!is_quantised(tensor)) return base_->read_f32(in_base(tensor), first_element, count, out);
  // Blocks are quantised whole, also where a part of one is asked for.
  const int64_t end = first_element + count;
  const int64_t end_of_blocks =
      std::min(tensor.info.shape.num_elements(), (end + kNf4Block - 1) / kNf4Block * kNf4Block);
  for (int64_t at = first_element / kNf4Block * kNf4Block; at < end; at += kElementsAtOnce) {
    std::vector<float> values =
        read_rounded_blocks(tensor, at, std::min(kElementsAtOnce, end_of_blocks - at));
    const int64_t from = std::max(first_element, at);
    const int64_t to = std::min(end, at + std::ssize(values));
    out = std::copy_n(values.begin() + (from - at), to - from, out);
  }
}

NarrowForm Nf4Source::narrow_form(const CheckpointTensor& tensor) const {
  if (!is_quantised(tensor)) return base_->narrow_form(in_base(tensor));
  return tensor.info.shape[1] % kNf4Block == 0 ? NarrowForm::kNf4 : NarrowForm::kNone;
}

void Nf4Source::read_quantised_rows(const CheckpointTensor& tensor, int64_t first_row,
                                    int64_t count, std::byte* out) const {
  if (!is_quantised(tensor))
    return base_->read_quantised_rows(in_base(tensor), first_row, count, out);
  const int64_t cols = tensor.info.shape[1];
  const auto row_bytes = static_cast<size_t>(narrow_layout(NarrowForm::kNf4).row_bytes(cols));
  const int64_t step = std::max<int64_t>(1, kElementsAtOnce / cols);
  for (int64_t begin = 0; begin < count; begin += step) {
    const int64_t rows = std::min(step, count - begin);
    const std::vector<float> values =
        read_from_base(tensor, (first_row + begin) * cols, rows * cols);
    for (int64_t r = 0; r < rows; ++r, out += row_bytes) {
      const auto row =
          std::span(values).subspan(static_cast<size_t>(r * cols), static_cast<size_t>(cols));
      if (const auto unfit = pack_row(row, {out, row_bytes}))
        refuse_scale(tensor.info.name, first_row + begin + r, *unfit);
    }
  }
}

std::string Nf4Source::scan_for_unrepresentable_values(const CheckpointTensor& tensor,
                                                       bool codes) const {
  if (is_quantised(tensor)) return {};
  return base_->scan_for_unrepresentable_values(in_base(tensor), codes);
}

void Nf4Source::read_bytes(const CheckpointTensor& tensor, int64_t first_byte,
                           std::span<std::byte> out) const {
  base_->read_bytes(in_base(tensor), first_byte, out);
}

}  // namespace strata
