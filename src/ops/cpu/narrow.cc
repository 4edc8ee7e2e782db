// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/narrow.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/narrow_kernels.h"
#include "ops/cpu/path_table.h"

namespace strata::ops::cpu {
namespace {

NarrowRounding rounding_of(const NarrowLayout& layout) {
  return layout.scale == NarrowScale::kExponent ? NarrowRounding::kNone : NarrowRounding::kUsual;
}

NarrowArgs kernel_args_of(const PanelView& panel, int64_t index) {
  const NarrowLayout& layout = narrow_layout(panel.form);
  return {.panel = static_cast<const uint8_t*>(panel.panel(index)),
          .width = panel.width,
          .scale = layout.scale,
          .codes = layout.codes,
          .has_min = layout.has_min(),
          .rounding = rounding_of(layout),
          .values = layout.values,
          .high_bits = layout.high_bits(),
          .least_code = layout.least_code,
          .are_bf16 = layout.scale != NarrowScale::kFloat,
          .header_bytes = layout.header_bytes(panel.width),
          .group_bytes = layout.group_bytes(panel.width),
          .super_fields = layout.super_fields,
          .super_bytes = layout.super_bytes(panel.width)};
}

// One row of a panel as it is written: its codes and fields go to their lane.
class LaneWriter {
 public:
  LaneWriter(const NarrowLayout& layout, uint8_t* panel, int64_t width, int64_t lane)
      : layout_(layout), panel_(panel), width_(width), lane_(lane) {}

  void write_fields(int64_t g, const uint8_t* from) const {
    uint8_t* to = panel_ + layout_.group_at(g, width_);
    for (int f = 0; f < layout_.fields; ++f) {
      std::memcpy(to + (f * width_ + lane_) * layout_.field_bytes, from + f * layout_.field_bytes,
                  static_cast<size_t>(layout_.field_bytes));
    }
  }
  void write_super_fields(int64_t g, const uint8_t* from) const {
    uint8_t* to = panel_ + layout_.super_at(g, width_);
    const int bytes = layout_.super_field_bytes;
    for (int f = 0; f < layout_.super_fields; ++f) {
      std::memcpy(to + (f * width_ + lane_) * bytes, from + bytes * f, static_cast<size_t>(bytes));
    }
  }
  void write_codes(int64_t g, const uint8_t* from) const {
    uint8_t* to = panel_ + layout_.group_at(g, width_) + layout_.header_bytes(width_);
    for (int64_t col = 0; col < kNarrowGroup; ++col) {
      write_code(to, narrow_element(lane_, col, width_), from[col]);
    }
  }

 private:
  void write_code(uint8_t* codes, int64_t element, uint8_t code) const {
    if (layout_.bits == 8) {
      codes[element] = code;
      return;
    }
    if (layout_.high_bits() > 0) return write_planes(codes, element, code);
    const NarrowNibble at = narrow_nibble(element, width_);
    codes[at.byte] = static_cast<uint8_t>((codes[at.byte] & (0xf0 >> at.shift)) | code << at.shift);
  }

  void write_planes(uint8_t* codes, int64_t element, uint8_t code) const {
    const NarrowPlanes at = narrow_planes(element, width_, layout_.high_bits());
    const int above = static_cast<int8_t>(code) - layout_.least_code;
    const int high_mask = (1 << layout_.high_bits()) - 1;
    uint8_t& low = codes[at.low.byte];
    uint8_t& high = codes[at.high.byte];
    low = static_cast<uint8_t>((low & (0xf0 >> at.low.shift)) | (above & 15) << at.low.shift);
    high = static_cast<uint8_t>((high & ~(high_mask << at.high.shift)) | (above >> 4 & high_mask)
                                                                             << at.high.shift);
  }

  const NarrowLayout& layout_;
  uint8_t* panel_;
  int64_t width_, lane_;
};

constexpr int64_t kGroupsOfSuper = kNarrowSuper / kNarrowGroup;

// A row before it is packed: a byte for each code, then the groups' fields, then the super fields.
struct RowBytes {
  const NarrowLayout& layout;
  const uint8_t* data;
  int64_t cols;

  [[nodiscard]] int64_t num_groups() const { return cols / kNarrowGroup; }
  [[nodiscard]] const uint8_t* codes(int64_t g) const { return data + g * kNarrowGroup; }
  [[nodiscard]] const uint8_t* fields(int64_t g) const {
    return data + cols + g * (layout.fields * layout.field_bytes);
  }
  [[nodiscard]] const uint8_t* super_fields(int64_t g) const {
    return fields(num_groups()) + g / kGroupsOfSuper * layout.super_bytes(1);
  }
};

void pack_lane(const LaneWriter& lane, const RowBytes& row) {
  for (int64_t g = 0; g < row.num_groups(); ++g) {
    if (g % kGroupsOfSuper == 0) lane.write_super_fields(g, row.super_fields(g));
    lane.write_fields(g, row.fields(g));
    lane.write_codes(g, row.codes(g));
  }
}

// A code whose value is not below zero, so that zero times it is +0.
uint8_t padding_code(const NarrowLayout& layout) {
  if (layout.values == nullptr) return 0;
  return static_cast<uint8_t>(
      std::find_if(layout.values, layout.values + 16, [](float v) { return v >= 0; }) -
      layout.values);
}

void zero_lanes_from(const NarrowLayout& layout, uint8_t* data, const PanelView& panel,
                     int64_t first) {
  if (first == panel.width) return;
  std::vector<uint8_t> zeros(static_cast<size_t>(layout.row_bytes(panel.cols)));
  std::fill_n(zeros.begin(), panel.cols, padding_code(layout));
  for (int64_t lane = first; lane < panel.width; ++lane) {
    pack_lane(LaneWriter(layout, data, panel.width, lane), {layout, zeros.data(), panel.cols});
  }
}

void pack_panel(const NarrowRows& rows, int64_t first_row, const PanelView& panel, int64_t index) {
  const NarrowLayout& layout = narrow_layout(panel.form);
  const int64_t origin = index * panel.width;
  const int64_t begin = std::max(first_row, origin);
  const int64_t end = std::min(first_row + rows.rows, origin + panel.width);
  const int64_t row_bytes = layout.row_bytes(rows.cols);
  auto* const data = static_cast<uint8_t*>(panel.panel(index));
  const auto* const from = reinterpret_cast<const uint8_t*>(rows.data);
  for (int64_t row = begin; row < end; ++row) {
    pack_lane(LaneWriter(layout, data, panel.width, row - origin),
              {layout, from + (row - first_row) * row_bytes, panel.cols});
  }
  if (end == panel.rows) zero_lanes_from(layout, data, panel, end - origin);
}

// One row of a panel as it is read.
class Lane {
 public:
  Lane(const PanelView& panel, int64_t row)
      : layout_(narrow_layout(panel.form)),
        panel_(static_cast<const uint8_t*>(panel.panel(row / panel.width))),
        width_(panel.width),
        lane_(row % panel.width) {}

  // The 32 values of a group.
  void dequantise_group(int64_t g, float* out) const {
    const uint8_t* const codes =
        panel_ + layout_.group_at(g, width_) + layout_.header_bytes(width_);
    for (int part = 0; part < 2; ++part) {
      const auto [s, m] = group_scale(g, part);
      for (int64_t col = 16 * part; col < 16 * part + 16; ++col) {
        const float product = code_value(codes, narrow_element(lane_, col, width_)) * s;
        out[col] = round_to_bf16(layout_.has_min() ? product + m : product);
      }
    }
  }

 private:
  struct Scale {
    float s, m;
  };

  [[nodiscard]] float code_value(const uint8_t* codes, int64_t element) const {
    if (layout_.high_bits() > 0) return static_cast<float>(planes_code(codes, element));
    if (layout_.codes == NarrowCodes::kInt8) return static_cast<int8_t>(codes[element]);
    if (layout_.codes == NarrowCodes::kE4m3) return f16_to_float(narrow_e4m3_half(codes[element]));
    const NarrowNibble at = narrow_nibble(element, width_);
    return layout_.values[codes[at.byte] >> at.shift & 15];
  }
  [[nodiscard]] int planes_code(const uint8_t* codes, int64_t element) const {
    const NarrowPlanes at = narrow_planes(element, width_, layout_.high_bits());
    const int high = codes[at.high.byte] >> at.high.shift & ((1 << layout_.high_bits()) - 1);
    return ((codes[at.low.byte] >> at.low.shift & 15) | high << 4) + layout_.least_code;
  }
  [[nodiscard]] static float half(const uint8_t* fields, int64_t at) {
    return f16_to_float(static_cast<uint16_t>(fields[2 * at] | fields[2 * at + 1] << 8));
  }

  [[nodiscard]] static float f32(const uint8_t* fields, int64_t at) {
    float value;
    std::memcpy(&value, fields + at * 4, sizeof(value));
    return value;
  }
  // 2^(e - 128), half of what E8M0 says; subnormal where e is below 2.
  [[nodiscard]] static float half_e8m0(uint32_t e) {
    return std::bit_cast<float>(e < 2 ? 0x200000u << e : (e - 1) << 23);
  }
  [[nodiscard]] Scale group_scale(int64_t g, int part) const {
    const uint8_t* const field = panel_ + layout_.group_at(g, width_);
    const uint8_t* const super = panel_ + layout_.super_at(g, width_);
    switch (layout_.scale) {
      case NarrowScale::kHalf:
        return {half(field, lane_), 0.0f};
      case NarrowScale::kHalfMin:
        return {half(field, lane_), half(field, width_ + lane_)};
      case NarrowScale::kExponent:
        return {half_e8m0(field[lane_]), 0.0f};
      case NarrowScale::kSuper:
        return {half(super, lane_) * static_cast<float>(static_cast<int8_t>(field[lane_])), 0.0f};
      case NarrowScale::kSuper16:
        return {half(super, lane_) *
                    static_cast<float>(static_cast<int8_t>(field[part * width_ + lane_])),
                0.0f};
      case NarrowScale::kSuperMin:
        return {half(super, lane_) * static_cast<float>(field[lane_]),
                -(half(super, width_ + lane_) * static_cast<float>(field[width_ + lane_]))};
      case NarrowScale::kFloat:
        return {f32(super, narrow_float_field(g, layout_.super_fields) * width_ + lane_), 0.0f};
      case NarrowScale::kE4m3: {
        const float e = f16_to_float(narrow_e4m3_half(field[part * width_ + lane_] & 0x7f));
        return {std::fma(e, f32(super, lane_), e * f32(super, width_ + lane_)), 0.0f};
      }
    }
    return {};
  }

  const NarrowLayout& layout_;
  const uint8_t* panel_;
  int64_t width_, lane_;
};

void unpack_row(const PanelView& panel, int64_t row, const TensorView& y, int64_t to) {
  const Lane lane(panel, row);
  float values[kNarrowGroup];
  for (int64_t g = 0; g < panel.cols / kNarrowGroup; ++g) {
    lane.dequantise_group(g, values);
    if (y.dtype == DType::kF32) {
      std::copy_n(values, kNarrowGroup, static_cast<float*>(y.row(to)) + g * kNarrowGroup);
    } else {
      std::transform(values, values + kNarrowGroup,
                     static_cast<Bf16*>(y.row(to)) + g * kNarrowGroup, to_bf16);
    }
  }
}

}  // namespace

void unpack_narrow_columns(CpuPath path, const PanelView& panel, int64_t index, int64_t col,
                           int64_t cols, void* dst) {
  NarrowArgs args = kernel_args_of(panel, index);
  args.first = col / kNarrowGroup;
  args.count = cols / kNarrowGroup;
  args.dst = dst;
  path_row(path).unpack_narrow(args);
}

bool try_accumulate_narrow_panel(CpuPath path, const PanelView& panel, int64_t index,
                                 const TileArgs& tile) {
  const NarrowAccumulate accumulate = path_row(path).accumulate_narrow;
  if (accumulate == nullptr || tile.rows > kNarrowTileRows) return false;
  NarrowArgs args = kernel_args_of(panel, index);
  args.count = panel.cols / kNarrowGroup;
  accumulate(args, tile);
  return true;
}

void pack_narrow_rows(CpuBackend& backend, const NarrowRows& rows, int64_t first_row,
                      const PanelView& panel) {
  const HostAccess access(backend.allocator());
  const int64_t first = first_row / panel.width;
  const int64_t last = (first_row + rows.rows + panel.width - 1) / panel.width;
  backend.pool().run(last - first, [&](int64_t begin, int64_t end, int) {
    for (int64_t index = first + begin; index < first + end; ++index) {
      pack_panel(rows, first_row, panel, index);
    }
  });
}

void unpack_narrow_rows(CpuBackend& backend, const PanelView& panel, int64_t first_row,
                        const TensorView& rows) {
  backend.pool().run(rows.rows(), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) unpack_row(panel, first_row + row, rows, row);
  });
}

void gather_narrow_rows(CpuBackend& backend, const PanelView& panel, std::span<const int32_t> ids,
                        const TensorView& y) {
  backend.pool().run(std::ssize(ids), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) unpack_row(panel, ids[static_cast<size_t>(t)], y, t);
  });
}

}  // namespace strata::ops::cpu
