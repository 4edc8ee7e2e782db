// SPDX-License-Identifier: Apache-2.0
// The norm behind a run of layers: hidden = norm(read(state)), where read is the state itself, or
// of n streams what reads them. The decoder has one, and so has multi-token prediction. Internal to
// model/. T tokens, D model width, n streams.
#pragma once
#include "model/pass/pass.h"

namespace strata::model {

struct FinalNorm {
  const BlockContext& streams;  // of the streams' parameters, where there are streams
  TensorView weight;            // [D]
  size_t weight_index = 0;      // in the table of parameters
};

// Writes hidden [T, D]; state is [T, n D]. What streams are read to is of the scratch.
void final_norm(Pass& pass, const FinalNorm& norm, TensorView state, TensorView hidden);
// Adds to d_state [T, n D] f32, which is zero; d_hidden is [T, D].
void final_norm_backward(Pass& pass, const FinalNorm& norm, TensorView state, TensorView d_hidden,
                         TensorView d_state);

}  // namespace strata::model
