// SPDX-License-Identifier: Apache-2.0
// Ownership: which of several ranks that have the same parameters keeps what of them between steps:
// masters, moments and gradients. Each has a run of rows in the table's order, about as many values
// as any other, and steps it alone; where some ranks alone have an expert, they own it besides.
// Plain values. Any thread.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "backend/comm.h"

namespace strata::train {

// One of so many owners.
struct Share {
  int owner = 0;
  int num_owners = 1;
};

// Rows of a parameter, of what is not a matrix the one that it is (model::Parameter::num_rows).
struct OwnedRows {
  int64_t first = 0;
  int64_t count = 0;  // 0: none

  [[nodiscard]] bool empty() const { return count == 0; }
  [[nodiscard]] int64_t end() const { return first + count; }
  // The rows that both have.
  [[nodiscard]] OwnedRows shared_with(const OwnedRows& other) const;
};

// What is on its way to another rank takes memory too: a piece has at most so many bytes, or is a
// row, and so many pieces are on their way from one rank to another.
constexpr int64_t kPieceBytes = 1 << 20, kPiecesAhead = 4;

// Rows of a parameter as they are sent.
struct RowPiece {
  size_t index = 0;
  OwnedRows rows;
  Shape shape;
  DType dtype = DType::kF32;
};
// Those of a matrix' rows.
void append_row_pieces(size_t index, const OwnedRows& rows, int64_t cols, DType dtype,
                       std::vector<RowPiece>& pieces);

class Ownership {
 public:
  // A parameter; of none that is held or trains there are 0 rows. `whole`: it has one owner. Owners
  // are each `stride`-th from `first_owner` on; those of two parameters are the same, or others.
  struct Item {
    int64_t rows = 0, cols = 0;
    bool whole = false;
    int first_owner = 0, stride = 1;
  };
  Ownership() = default;
  Ownership(std::span<const Item> items, int num_owners);

  [[nodiscard]] int num_owners() const { return static_cast<int>(rows_.size()); }
  [[nodiscard]] const OwnedRows& rows(int owner, size_t index) const {
    return rows_[static_cast<size_t>(owner)][index];
  }
  // Whether rows of one parameter have several owners.
  [[nodiscard]] bool is_divided(int owner, size_t index) const {
    const OwnedRows& own = rows(owner, index);
    return !own.empty() && own.count < items_[index].rows;
  }
  [[nodiscard]] const std::vector<Item>& items() const { return items_; }
  // Values of the rows that the owner has.
  [[nodiscard]] int64_t num_values(int owner, size_t index) const {
    return rows(owner, index).count * items_[index].cols;
  }
  [[nodiscard]] int64_t num_values(int owner) const;

 private:
  // How many of the `left` rows of a parameter an owner takes that has space for so many values.
  static int64_t rows_to_take(const Item& item, int64_t left, int64_t space);
  // Values of all parameters that the same owners have, those dealt to them, and who is next.
  struct Filling {
    int64_t total = 0, done = 0;
    int place = 0;
  };
  void divide_rows(size_t index, Filling& filling);

  std::vector<Item> items_;
  std::vector<std::vector<OwnedRows>> rows_;  // of each owner, by parameter
};

}  // namespace strata::train
