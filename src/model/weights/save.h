// SPDX-License-Identifier: Apache-2.0
// From weights to a Hugging Face directory, in slices. Engine thread only.
#pragma once
#include <string>

#include "base/function_ref.h"
#include "model/weights/load.h"

namespace strata::model {

// Values of a parameter to be saved: fills f32 rows [first_row, first_row + rows.rows()).
using RowSource = FunctionRef<void(size_t index, int64_t first_row, TensorView rows)>;

// Writes the weights to `dir` with the source's names, shapes, dtypes and shard assignment (a model
// made in memory: one file in `dtype_of_new` ). `trained` supplies fp32 masters; without it
// (nullptr) the weights as they are, which is refused in bf16 mode when the source holds F32 or
// F16, since their bits are gone. Of a stage of a model that was loaded `trained` has all that
// trains, and also the buffers that the stage does not hold.
void save_model(Backend& backend, const LoadedModel& model, const std::string& dir,
                const RowSource* trained, DType dtype_of_new = DType::kBF16);

}  // namespace strata::model
