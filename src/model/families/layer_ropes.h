// SPDX-License-Identifier: Apache-2.0
// RoPE of models whose full and sliding layers have settings of their own (Gemma 3 and 4, OLMo 3).
#pragma once
#include "model/families/family.h"

namespace strata::model {

struct LayerRopes {
  RopeConfig full, sliding;
};

// transformers 5 has settings for each kind of layer, 4 one scaling, of the full layers alone. A
// kind without settings has those of the older form. yarn's `truncate` is read besides the kinds
// alone, as transformers 5.23 does.
LayerRopes read_layer_ropes(const ConfigObject& object, const LayerRopes& old_form,
                            const RopeDefaults& defaults = {});

// RoPE of the full layers in the older form: with rope_scaling, or plain.
RopeConfig read_older_full_rope(const ConfigObject& object, double theta);

}  // namespace strata::model
