// SPDX-License-Identifier: Apache-2.0
#include "ops/pack.h"

#include "ops/checks.h"
#include "ops/rows.h"
#include "ops/stage.h"

namespace strata::ops {
namespace {

void check_panel(const PanelView& panel) {
  CHECK(is_float(panel.dtype), panel.dtype);
  CHECK(!panel.empty() && panel.width > 0 && panel.cols > 0, panel.width, panel.cols);
}

void check_rows(const PanelView& panel, int64_t first_row, const TensorView& rows) {
  check_panel(panel);
  CHECK(rows.cols() == panel.cols, rows.cols(), panel.cols);
  CHECK(first_row >= 0 && first_row + rows.rows() <= panel.rows, first_row, rows.rows(),
        panel.rows);
}

}  // namespace

int64_t panel_width(const Backend& backend) { return backend.rows().pack.panel_width(backend); }

void pack(Backend& backend, TensorView rows, int64_t first_row, PanelView panel) {
  check_rows(panel, first_row, rows);
  CHECK(!panel.is_narrow(), narrow_layout(panel.form).name);
  if (rows.rows() > 0) backend.call()->pack.pack(backend, rows, first_row, panel);
}

void pack_list(Backend& backend, std::span<const PackItem> items) {
  for (const PackItem& item : items) {
    check_rows(item.panel, 0, item.rows);
    CHECK(!item.panel.is_narrow());
  }
  backend.call()->pack.list(backend, stage_list(backend, items));
}

void pack_narrow_rows(Backend& backend, const NarrowRows& rows, int64_t first_row,
                      PanelView panel) {
  check_panel(panel);
  CHECK(panel.form == rows.form && panel.dtype == DType::kBF16, panel.dtype);
  CHECK(rows.cols == panel.cols && rows.cols % kNarrowGroup == 0, rows.cols, panel.cols);
  CHECK(first_row >= 0 && first_row + rows.rows <= panel.rows, first_row, rows.rows, panel.rows);
  if (rows.rows > 0) backend.call()->pack.narrow(backend, rows, first_row, panel);
}

void unpack(Backend& backend, PanelView panel, int64_t first_row, TensorView rows) {
  check_rows(panel, first_row, rows);
  CHECK(rows.dtype == DType::kF32 || rows.dtype == panel.dtype, rows.dtype, panel.dtype);
  if (rows.rows() > 0) backend.call()->pack.unpack(backend, panel, first_row, rows);
}

void gather_rows(Backend& backend, PanelView panel, std::span<const int32_t> token_ids,
                 TensorView y) {
  check_panel(panel);
  CHECK(y.cols() == panel.cols, y.cols(), panel.cols);
  CHECK(y.rows() == static_cast<int64_t>(token_ids.size()), y.rows(), token_ids.size());
  CHECK(y.dtype == DType::kF32 || y.dtype == panel.dtype, y.dtype, panel.dtype);
  for (const int32_t id : token_ids) DCHECK(id >= 0 && id < panel.rows, id, panel.rows);
  backend.call()->pack.gather_rows(backend, panel, stage_list(backend, token_ids), y);
}

}  // namespace strata::ops
