// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/protocol/tensor.h"

#include <gmock/gmock.h>

#include "base/error.h"

namespace strata::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr TensorLimits kMost = {.rows = 100, .columns = 50, .elements = 1000};

TensorParts dense(std::vector<int64_t> shape) {
  TensorParts parts;
  parts.shape = std::move(shape);
  return parts;
}

TensorParts csr(std::vector<int64_t> shape, std::vector<int64_t> crow, std::vector<int64_t> col) {
  return {
      .shape = std::move(shape), .is_sparse = true, .crow = std::move(crow), .col = std::move(col)};
}

std::string fault_of(const TensorParts& parts, int64_t num_values) {
  try {
    checked_tensor_layout(parts, num_values, "datum 1: weights", kMost);
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

TEST(TensorLayout, DenseFormsNeedNoPositions) {
  EXPECT_EQ(checked_tensor_layout({}, 5, "w", kMost).num_elements(), 5);
  const TensorLayout matrix = checked_tensor_layout(dense({3, 2}), 6, "w", kMost);
  EXPECT_EQ(matrix.num_rows, 3);
  EXPECT_EQ(matrix.num_columns, 2);
  EXPECT_THAT(matrix.positions, IsEmpty());
}

TEST(TensorLayout, CsrValuesFindTheirPlacesInAnyOrderOfColumns) {
  // [[., 7, 8], [., ., .], [9, ., 6]], the last row written from its end.
  const TensorLayout layout =
      checked_tensor_layout(csr({3, 3}, {0, 2, 2, 4}, {1, 2, 2, 0}), 4, "w", kMost);
  EXPECT_THAT(layout.positions, ElementsAre(1, 2, 8, 6));
}

TEST(TensorLayout, RefusesWhatDoesNotFit) {
  EXPECT_THAT(fault_of(dense({4}), 3), HasSubstr("holds 3 values, its shape wants 4"));
  EXPECT_THAT(fault_of(dense({1, 1, 1}), 1), HasSubstr("3 dimensions"));
  EXPECT_THAT(fault_of(dense({-1}), 0), HasSubstr("a dimension is -1"));
  EXPECT_THAT(fault_of(dense({2, 0}), 0), HasSubstr("the last dimension is 0"));
  EXPECT_THAT(fault_of(dense({101}), 101), HasSubstr("101 rows, there are 100 tokens"));
  EXPECT_THAT(fault_of(dense({40, 40}), 1600), HasSubstr("1600 elements, 1000 are left"));
  EXPECT_THAT(fault_of(csr({1, 51}, {0, 0}, {}), 0), HasSubstr("51 columns, the limit is 50"));
  EXPECT_THAT(fault_of(csr({1, 1LL << 40}, {0, 0}, {}), 0), HasSubstr("is 1099511627776"));
  EXPECT_THAT(fault_of(csr({40, 40}, std::vector<int64_t>(41, 0), {}), 0),
              HasSubstr("1600 elements, 1000 are left"));
  EXPECT_THAT(fault_of(csr({2}, {0, 1, 1}, {0}), 1), HasSubstr("a shape of two dimensions"));
  EXPECT_THAT(fault_of(csr({2, 3}, {0, 1}, {0}), 1), HasSubstr("2 entries, wanted rows + 1 = 3"));
  EXPECT_THAT(fault_of(csr({1, 3}, {0, 1}, {0, 1}), 1), HasSubstr("2 col_indices and 1 values"));
  EXPECT_THAT(fault_of(csr({1, 3}, {1, 1}, {0}), 1), HasSubstr("from 1 to 1, wanted 0 to 1"));
  EXPECT_THAT(fault_of(csr({2, 3}, {0, 2, 1}, {0}), 1), HasSubstr("decreases after row 1"));
  EXPECT_THAT(fault_of(csr({1, 3}, {0, 1}, {3}), 1), HasSubstr("column 3 of row 0 is outside"));
}

// Which of the two values counts would be a guess.
TEST(TensorLayout, RefusesAColumnNamedTwice) {
  const std::string fault = "datum 1: weights: CSR names column 2 of row 1 twice";
  EXPECT_EQ(fault_of(csr({2, 3}, {0, 1, 3}, {0, 2, 2}), 3), fault);
  EXPECT_EQ(fault_of(csr({2, 3}, {0, 0, 3}, {2, 0, 2}), 3), fault);
}

}  // namespace
}  // namespace strata::server
