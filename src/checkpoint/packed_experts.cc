// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/packed_experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>

#include "base/check.h"
#include "checkpoint/source.h"

namespace strata {
namespace {

constexpr std::string_view kExperts = ".experts";
constexpr int64_t kBytesAtOnce = int64_t{16} << 20;
constexpr int64_t kTransposed = 32;  // inputs at a time: what is written at once is a cache line

// One of the tensors that hold all experts: its name behind them, and the projections in it.
struct PackedName {
  std::string_view suffix;
  std::array<std::string_view, 2> projections;
  int64_t count;
  std::string_view kind;  // of the parts
};
constexpr PackedName kPacked[] = {{".gate_up_proj", {"gate_proj", "up_proj"}, 2, "weight"},
                                  {".gate_up_proj_bias", {"gate_proj", "up_proj"}, 2, "bias"},
                                  {".down_proj", {"down_proj"}, 1, "weight"},
                                  {".down_proj_bias", {"down_proj"}, 1, "bias"}};

const PackedName* find_packed_name(std::string_view name) {
  for (const PackedName& packed : kPacked) {
    if (!name.ends_with(packed.suffix)) continue;
    if (name.substr(0, name.size() - packed.suffix.size()).ends_with(kExperts)) return &packed;
  }
  return nullptr;
}

// [E, ...] of matrices or of biases.
bool fits(const PackedName& packed, const CheckpointTensor& tensor) {
  const TensorInfo& info = tensor.info;
  const bool is_bias = packed.kind == "bias";
  if (!info.readable || tensor.bnb4 != nullptr) return false;
  if (have_llama4_name(experts_of_packed_tensor(info.name)) && (is_bias || tensor.scaled)) {
    return false;
  }
  if (info.shape.rank() != (is_bias ? 2 : 3)) return false;
  const int outputs = is_bias ? 1 : tensor.scaled ? 1 : 2;
  return info.shape.num_elements() > 0 && info.shape[outputs] % packed.count == 0;
}

// The part of the projection at that place in the packed name.
CheckpointTensor make_part(const CheckpointTensor& tensor, const PackedName& packed, int64_t place,
                           const ExpertPart& part) {
  const std::string_view experts = experts_of_packed_tensor(tensor.info.name);
  CheckpointTensor out;
  out.shard = tensor.shard;
  out.info = tensor.info;
  out.info.name = fmt::format("{}.{}.{}.{}", experts, part.expert,
                              packed.projections[static_cast<size_t>(place)], packed.kind);
  out.info.dims = {part.outputs};
  if (packed.kind == "weight") out.info.dims.push_back(part.inputs);
  out.info.shape = Shape();
  for (const int64_t dim : out.info.dims) out.info.shape.push_back(dim);
  const int64_t parts = tensor.info.shape[0] * packed.count;
  out.info.end = out.info.begin + tensor.info.num_bytes() / parts;
  out.packed = part;
  return out;
}

// Rows [begin, end) of a part that is transposed, element by element of type T, row-major.
template <typename T>
void transpose_rows(const ExpertPart& part, int64_t begin, int64_t end, ReadElements read, T* out) {
  const int64_t width = part.width;
  const int64_t rows = end - begin;
  const int64_t column = part.first + part.step * begin;
  const int64_t span = (rows - 1) * part.step + 1;
  const bool whole_rows = 2 * span >= width;
  const int64_t stride = whole_rows ? width : span;
  const int64_t step =
      std::max<int64_t>(1, kBytesAtOnce / (stride * static_cast<int64_t>(sizeof(T))));
  const int64_t base = part.expert * part.inputs * width;
  std::vector<T> block;
  for (int64_t k = 0; k < part.inputs; k += step) {
    const int64_t inputs = std::min(step, part.inputs - k);
    block.resize(static_cast<size_t>(inputs * stride));
    auto* const bytes = reinterpret_cast<std::byte*>(block.data());
    if (whole_rows) {
      read(base + k * width, inputs * width, bytes);
    } else {
      for (int64_t i = 0; i < inputs; ++i) {
        read(base + (k + i) * width + column, span,
             bytes + i * span * static_cast<int64_t>(sizeof(T)));
      }
    }
    const T* from = block.data() + (whole_rows ? column : 0);
    for (int64_t i = 0; i < inputs; i += kTransposed) {
      const int64_t last = std::min(inputs, i + kTransposed);
      for (int64_t n = 0; n < rows; ++n) {
        T* const to = out + n * part.inputs + k;
        for (int64_t j = i; j < last; ++j) to[j] = from[j * stride + n * part.step];
      }
    }
  }
}

// Rows [begin, end) of a part, whole ones.
void read_rows(const ExpertPart& part, int64_t element_bytes, int64_t begin, int64_t end,
               ReadElements read, std::byte* out) {
  if (!part.transposed) {
    return read_expert_rows(
        part, part.inputs * element_bytes, begin, end - begin,
        [&](int64_t first, int64_t count, std::byte* rows) {
          read(first * part.inputs, count * part.inputs, rows);
        },
        out);
  }
  if (element_bytes == 2) {
    return transpose_rows(part, begin, end, read, reinterpret_cast<uint16_t*>(out));
  }
  CHECK(element_bytes == 4, element_bytes);
  transpose_rows(part, begin, end, read, reinterpret_cast<uint32_t*>(out));
}

}  // namespace

std::string_view experts_of_packed_tensor(std::string_view name) {
  const PackedName* packed = find_packed_name(name);
  return packed == nullptr ? std::string_view()
                           : name.substr(0, name.size() - packed->suffix.size());
}

bool have_llama4_name(std::string_view experts) {
  return experts.ends_with(".feed_forward.experts");
}

std::vector<CheckpointTensor> split_into_experts(const CheckpointTensor& tensor) {
  const PackedName* packed = find_packed_name(tensor.info.name);
  if (packed == nullptr || !fits(*packed, tensor)) return {};
  const Shape& shape = tensor.info.shape;
  const bool is_bias = packed->kind == "bias";
  const bool transposed = is_bias || !tensor.scaled;
  const bool alternates = !have_llama4_name(experts_of_packed_tensor(tensor.info.name));
  const auto whole = std::make_shared<const CheckpointTensor>(tensor);
  std::vector<CheckpointTensor> parts;
  for (int64_t expert = 0; expert < shape[0]; ++expert) {
    for (int64_t place = 0; place < packed->count; ++place) {
      const int64_t width = is_bias || tensor.scaled ? shape[1] : shape[2];
      const int64_t outputs = width / packed->count;
      const int64_t inputs = is_bias ? 1 : tensor.scaled ? shape[2] : shape[1];
      parts.push_back(make_part(tensor, *packed, place,
                                {.whole = whole,
                                 .expert = expert,
                                 .first = alternates ? place : place * outputs,
                                 .step = alternates ? packed->count : 1,
                                 .width = width,
                                 .outputs = outputs,
                                 .inputs = inputs,
                                 .transposed = transposed}));
    }
  }
  return parts;
}

void read_expert_part(const ExpertPart& part, int64_t element_bytes, int64_t first, int64_t count,
                      ReadElements read, std::byte* out) {
  if (count == 0) return;
  const int64_t begin = first / part.inputs;
  const int64_t end = (first + count - 1) / part.inputs + 1;
  if (first % part.inputs == 0 && count % part.inputs == 0) {
    return read_rows(part, element_bytes, begin, end, read, out);
  }
  std::vector<std::byte> rows(static_cast<size_t>((end - begin) * part.inputs * element_bytes));
  read_rows(part, element_bytes, begin, end, read, rows.data());
  std::memcpy(out, rows.data() + (first - begin * part.inputs) * element_bytes,
              static_cast<size_t>(count * element_bytes));
}

void read_expert_rows(const ExpertPart& part, int64_t row_bytes, int64_t first_row, int64_t count,
                      ReadElements read, std::byte* out) {
  CHECK(!part.transposed);
  const int64_t step = std::max<int64_t>(1, kBytesAtOnce / (row_bytes * part.step));
  std::vector<std::byte> rows;
  for (int64_t row = first_row; row < first_row + count; row += step) {
    const int64_t some = std::min(step, first_row + count - row);
    const int64_t span = (some - 1) * part.step + 1;
    rows.resize(static_cast<size_t>(span * row_bytes));
    read(part.row_in_whole(row), span, rows.data());
    for (int64_t i = 0; i < some; ++i, out += row_bytes) {
      std::memcpy(out, rows.data() + i * part.step * row_bytes, static_cast<size_t>(row_bytes));
    }
  }
}

namespace {

// What the name of a part says.
struct PartName {
  std::string experts;
  int64_t expert = 0;
  const PackedName* packed = nullptr;
  int64_t place = 0;  // among the projections
};

// "X.experts.3.gate_proj.weight".
std::optional<PartName> parse_part_name(std::string_view name) {
  for (const PackedName& packed : kPacked) {
    for (int64_t place = 0; place < packed.count; ++place) {
      const std::string tail =
          fmt::format(".{}.{}", packed.projections[static_cast<size_t>(place)], packed.kind);
      if (!name.ends_with(tail)) continue;
      const std::string_view front = name.substr(0, name.size() - tail.size());
      const size_t dot = front.rfind('.');
      if (dot == std::string_view::npos || !front.substr(0, dot).ends_with(kExperts)) continue;
      PartName out = {std::string(front.substr(0, dot)), 0, &packed, place};
      const char* const end = front.data() + front.size();
      const auto [stop, error] = std::from_chars(front.data() + dot + 1, end, out.expert);
      if (error == std::errc() && stop == end) return out;
    }
  }
  return std::nullopt;
}

Shape whole_shape(const PackedName& packed, int64_t experts, int64_t outputs, int64_t inputs) {
  if (packed.kind == "bias") return {experts, packed.count * outputs};
  return {experts, inputs, packed.count * outputs};
}

std::string whole_name(const PartName& part) {
  return part.experts + std::string(part.packed->suffix);
}

}  // namespace

std::string packed_tensor_of(std::string_view part) {
  const std::optional<PartName> name = parse_part_name(part);
  return name ? whole_name(*name) : std::string();
}

ExpertPacker::ExpertPacker(CheckpointLayout& layout) {
  std::vector<CheckpointLayout::Entry> entries;
  std::unordered_map<std::string, size_t> entry_of;  // of a whole tensor
  for (CheckpointLayout::Entry& entry : layout.entries) {
    const std::optional<PartName> part = parse_part_name(entry.tensor.name);
    if (!part) {
      entries.push_back(std::move(entry));
      continue;
    }
    const std::string name = whole_name(*part);
    const Shape& shape = entry.tensor.shape;
    const auto [found, is_new] = by_whole_.try_emplace(name, wholes_.size());
    if (is_new) {
      entry_of[name] = entries.size();
      wholes_.push_back({.name = name,
                         .parts = {},
                         .num_parts = part->packed->count,
                         .alternates = !have_llama4_name(part->experts),
                         .outputs = shape[0],
                         .inputs = shape.rank() == 2 ? shape[1] : 1});
      entries.push_back({{.name = name, .dtype = entry.tensor.dtype, .shape = {}}, entry.shard});
    }
    Whole& whole = wholes_[found->second];
    const auto at = static_cast<size_t>(part->expert * whole.num_parts + part->place);
    whole.parts.resize(std::max(whole.parts.size(), at + 1));
    by_part_[entry.tensor.name] = found->second;
    const int64_t experts = (std::ssize(whole.parts) + whole.num_parts - 1) / whole.num_parts;
    entries[entry_of[name]].tensor.shape =
        whole_shape(*part->packed, experts, whole.outputs, whole.inputs);
    whole.parts[at] = std::move(entry.tensor);
  }
  for (const Whole& whole : wholes_) {
    CHECK(std::ssize(whole.parts) % whole.num_parts == 0, whole.name, whole.parts.size());
    for (const TensorDecl& part : whole.parts) {
      CHECK(!part.name.empty() && part.shape == whole.parts[0].shape, whole.name, part.name);
    }
  }
  layout.entries = std::move(entries);
}

std::span<const TensorDecl> ExpertPacker::parts_of(std::string_view whole) const {
  const auto found = by_whole_.find(std::string(whole));
  if (found == by_whole_.end()) return {};
  return wholes_[found->second].parts;
}

const TensorDecl* ExpertPacker::find_part(std::string_view name) const {
  const auto found = by_part_.find(std::string(name));
  if (found == by_part_.end()) return nullptr;
  const std::vector<TensorDecl>& parts = wholes_[found->second].parts;
  const auto part = std::find_if(parts.begin(), parts.end(),
                                 [&](const TensorDecl& decl) { return decl.name == name; });
  return &*part;
}

// Transposes one expert's [parts][outputs][inputs] to [inputs][outputs][parts], or to
// [inputs][parts][outputs] where its parts do not alternate.
std::vector<std::byte> ExpertPacker::packed_bytes(const Whole& whole) {
  const auto element = static_cast<size_t>(dtype_bytes(whole.parts[0].dtype));
  std::vector<std::byte> out(whole.bytes.size());
  const std::byte* from = whole.bytes.data();
  for (int64_t part = 0; part < whole.num_parts; ++part) {
    for (int64_t n = 0; n < whole.outputs; ++n) {
      for (int64_t k = 0; k < whole.inputs; ++k, from += element) {
        const int64_t column =
            whole.alternates ? n * whole.num_parts + part : part * whole.outputs + n;
        const int64_t at = k * whole.outputs * whole.num_parts + column;
        std::memcpy(out.data() + static_cast<size_t>(at) * element, from, element);
      }
    }
  }
  return out;
}

void ExpertPacker::append(std::string_view name, std::span<const std::byte> bytes,
                          FunctionRef<void(std::string_view, std::span<const std::byte>)> write) {
  Whole& whole = wholes_[by_part_.at(std::string(name))];
  whole.bytes.insert(whole.bytes.end(), bytes.begin(), bytes.end());
  const int64_t wanted = whole.num_parts * whole.parts[0].bytes();
  CHECK(std::ssize(whole.bytes) <= wanted, name, whole.bytes.size(), wanted);
  if (std::ssize(whole.bytes) < wanted) return;
  write(whole.name, packed_bytes(whole));
  whole.bytes.clear();
}

}  // namespace strata
