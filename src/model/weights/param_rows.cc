// SPDX-License-Identifier: Apache-2.0
#include "model/weights/param_rows.h"

#include "base/check.h"

namespace strata::model {

Deal ParamRow::output_deal() const {
  CHECK(shards.axis != ShardAxis::kNone && is_parameter());
  const int64_t size = whole_outputs > 0 ? whole_outputs : shape[0];
  if (shards.axis == ShardAxis::kGathered) return {.size = size};
  return {.size = size,
          .unit = shards.width > 0 ? shards.width : size / shards.units,
          .copied = shards.copied};
}

Deal ParamRow::input_deal() const {
  CHECK(shards.axis == ShardAxis::kGathered && shape.rank() == 2);
  return {.size = shape[1], .unit = shape[1] / shards.units};
}

void ParamRow::take_share(const TensorShare& share) {
  CHECK(whole_outputs == 0);
  const AxisPart part = output_deal().part_of(share);
  // A unit has whole pairs of blocks.
  CHECK(blocks.empty() || part.first % (blocks.first + blocks.second) == 0, suffix);
  whole_outputs = shape[0];
  // A block's outputs are summed over by themselves.
  if (is_matrix() && blocks.empty()) num_lead_outputs = output_deal().num_lead(share);
  first_output = part.first - num_lead_outputs;
  Shape own = {num_lead_outputs + part.count};
  for (int axis = 1; axis < shape.rank(); ++axis) own.push_back(shape[axis]);
  shape = own;
}

}  // namespace strata::model
