// SPDX-License-Identifier: Apache-2.0
#include "tensor/view.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <tuple>
#include <vector>

#include "tensor/panel.h"

namespace strata {
namespace {

TEST(Shape, CountsAndPrints) {
  EXPECT_EQ(Shape().num_elements(), 1);
  EXPECT_EQ(Shape().to_string(), "[]");
  const Shape shape{2, 3, 4};
  EXPECT_EQ(shape.num_elements(), 24);
  EXPECT_EQ(shape.to_string(), "[2, 3, 4]");
  EXPECT_EQ((Shape{2, 0}.num_elements()), 0);
  EXPECT_NE((Shape{2, 3}), (Shape{2, 3, 1}));
  Shape grown{2, 3};
  grown.push_back(4);
  EXPECT_EQ(grown, shape);
}

class ViewTest : public ::testing::Test {
 protected:
  ViewTest() { std::iota(values_.begin(), values_.end(), 0.0f); }
  std::vector<float> values_ = std::vector<float>(24);
  TensorView view_{values_.data(), DType::kF32, {2, 3, 4}};
};

TEST_F(ViewTest, FlattensRows) {
  EXPECT_EQ(view_.rows(), 6);
  EXPECT_EQ(view_.cols(), 4);
  EXPECT_TRUE(view_.dense());
  EXPECT_EQ(*static_cast<float*>(view_.row(5)), 20.0f);
  EXPECT_EQ(view_.num_bytes(), 96);
}

TEST_F(ViewTest, SlicesBorrow) {
  const TensorView rows = view_.slice_rows(1, 3);
  EXPECT_EQ(rows.shape, (Shape{2, 4}));
  EXPECT_EQ(rows.f32()[0], 4.0f);
  const TensorView cols = view_.slice_cols(1, 3);
  EXPECT_EQ(cols.shape, (Shape{6, 2}));
  EXPECT_FALSE(cols.dense());
  EXPECT_EQ(static_cast<float*>(cols.row(2))[1], 10.0f);
  const TensorView both = cols.slice_rows(2, 4);
  EXPECT_EQ(static_cast<float*>(both.row(1))[0], 13.0f);
  static_cast<float*>(both.row(1))[0] = -1.0f;
  EXPECT_EQ(values_[13], -1.0f);
}

TEST_F(ViewTest, IndexesAndReshapes) {
  const TensorView second = view_.at(1);
  EXPECT_EQ(second.shape, (Shape{3, 4}));
  EXPECT_EQ(second.f32()[0], 12.0f);
  EXPECT_EQ(view_.reshape({4, 6}).rows(), 4);
  EXPECT_EQ(view_.at(0).slice_rows(0, 0).rows(), 0);
}

TEST_F(ViewTest, BoundsAreChecked) {
  EXPECT_DEATH(std::ignore = view_.slice_rows(0, 7), "CHECK failed");
  EXPECT_DEATH(std::ignore = view_.slice_cols(3, 2), "CHECK failed");
  EXPECT_DEATH(std::ignore = view_.at(2), "CHECK failed");
  EXPECT_DEATH(std::ignore = view_.reshape({5, 5}), "CHECK failed");
  EXPECT_DEATH(std::ignore = view_.slice_cols(0, 2).reshape({12}), "CHECK failed");
}

TEST(View, EmptyAndZeroSized) {
  EXPECT_TRUE(TensorView().empty());
  float value = 0;
  const TensorView none(&value, DType::kF32, {3, 0});
  EXPECT_EQ(none.rows(), 0);
  EXPECT_EQ(none.num_bytes(), 0);
}

// Every element has a place of its own inside the panels, at the offset that the header's layout
// states.
TEST(PanelView, OffsetsAreThoseOfTheLayout) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t width : {1, 4, 16}) {
      for (const int64_t rows : {1, 15, 16, 33}) {
        for (const int64_t cols : {1, 2, 7}) {
          const PanelView view{
              .data = nullptr, .dtype = dtype, .rows = rows, .cols = cols, .width = width};
          std::set<int64_t> seen;
          for (int64_t r = 0; r < rows; ++r) {
            for (int64_t c = 0; c < cols; ++c) {
              const int64_t panel = r / width * view.panel_elements();
              const int64_t inside = dtype == DType::kF32
                                         ? c * width + r % width
                                         : c / 2 * 2 * width + r % width * 2 + c % 2;
              ASSERT_EQ(view.offset(r, c), panel + inside);
              ASSERT_LT(view.offset(r, c) * dtype_bytes(dtype), view.num_bytes());
              ASSERT_TRUE(seen.insert(view.offset(r, c)).second);
            }
          }
          EXPECT_EQ(panel_matrix_bytes(dtype, rows, cols, width), view.num_bytes());
        }
      }
    }
  }
}

}  // namespace
}  // namespace strata
