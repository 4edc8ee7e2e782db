// SPDX-License-Identifier: Apache-2.0
// The parameters of a layer as rows: what a block or a connector declares of each, and all that
// weights, LoRA, loading, saving, export, plans and counts know of them. Computed once for each
// kind of layer (model/weights/layer_table.h). Names are static texts. E experts.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "model/weights/row_blocks.h"
#include "model/weights/tensor_share.h"
#include "tensor/dtype.h"
#include "tensor/view.h"

namespace strata::model {

// Rows of a larger tensor: `count` runs of so many rows, one every `step` rows.
struct RowRuns {
  int64_t first_row = 0;  // of the first run
  int64_t rows = 0;       // of a run
  int64_t step = 0;
  int64_t count = 0;
};

// Another place where a checkpoint may hold a parameter: under another name, or as rows of a larger
// tensor (its leading axes flattened).
struct Spelling {
  std::string_view suffix;      // after "model.layers.N."; "{}" is the expert
  Shape stored = {};            // of the whole tensor; empty: the parameter's own
  int64_t first_row = 0;        // of the parameter in it (of expert 0)
  int64_t rows_per_expert = 0;  // from one expert's first row to the next one's
  // Where the parameter's rows are not next to each other in it: they are those of these in turn.
  std::vector<RowRuns> runs = {};
  bool is_usual = false;  // new files have it, whatever ModelConfig::stores_as_one says
};

constexpr int kNoKey = -1;

// What an adapter may do with a matrix.
struct LoraPlace {
  std::string_view path = {};  // below the layer, "self_attn.q_proj"; empty: no target
  // Modules of a layer are in this order, which saved optimizer states follow: a number stays.
  int order = 0;
  int64_t in = 0;          // of a target that is no parameter of its own
  int64_t out = 0;         // likewise
  int64_t num_halves = 1;  // B's outputs belong to so many parameters in turn
  // The keys of the block's matrices whose outputs are this target's in turn, where it is no
  // parameter of its own. Adapters have one A and one B for all of them; a matrix that is_part has
  // no module of its own.
  std::array<int, 3> parts = {kNoKey, kNoKey, kNoKey};
  bool is_part = false;
  bool alternating = false;       // PEFT's gate_up_proj has these as rows in turn (gpt-oss)
  bool swapped = false;           // PEFT's A of all experts reads the outputs, and B gives inputs
  bool is_fresh = true;           // a fresh adapter may have it; others come from files alone
  bool of_indexer = false;        // or from a run that trains indexers
  std::string_view stacked = {};  // its names in Tinker's stacked export of experts: "w1", "w1 w3"
};

// How a model without a checkpoint draws what is not a matrix (matrices are drawn as kNormal).
enum class ParamDraw : uint8_t {
  kConstant,     // `init`
  kNormal,       // with the config's initializer_range
  kLogUniform16  // log(u), u uniform in [0.01, 16)
};

// How tensor ranks may divide a row: by its outputs, a matrix's first axis and all that its bias
// has. Expert ranks divide `num_experts` of a row besides.
enum class ShardAxis : uint8_t {
  kNone,     // each rank has it whole
  kOutputs,  // in units
  // Singly. Its inputs, the last axis, are what ranks have in units: they are gathered before the
  // product, so that each output is one sum.
  kGathered
};

struct RowShards {
  ShardAxis axis = ShardAxis::kNone;
  int64_t units = 0;           // that stay whole
  std::string_view unit = {};  // what they are, for messages: "heads"
  int64_t width = 0;           // of a unit, where the last may be narrower; 0: all are equal
  bool uneven = false;         // a rank may have a unit more than another
  bool copied = false;         // fewer than ranks, which they divide, are there several times
};
constexpr RowShards outputs_by(int64_t units, std::string_view unit) {
  return {.axis = ShardAxis::kOutputs, .units = units, .unit = unit};
}
constexpr RowShards uneven_outputs_by(int64_t units, std::string_view unit) {
  return {.axis = ShardAxis::kOutputs, .units = units, .unit = unit, .uneven = true};
}
// Inputs that are gathered, in the units of the outputs that make them.
constexpr RowShards gathered(const RowShards& inputs) {
  RowShards shards = inputs;
  shards.axis = ShardAxis::kGathered;
  return shards;
}

struct ParamRow {
  int key = 0;                   // the owner's own number for it, from 0 on
  std::string_view suffix = {};  // after "model.layers.N."; of experts "{}" is the expert
  Shape shape = {};              // of one expert; rank 2: a matrix; empty: for adapters alone
  int64_t num_experts = 0;       // 0: a plain parameter
  int64_t num_active = 0;        // of these, that one token uses
  RowBlocks blocks = {};         // of a matrix that is read in parts
  RowShards shards = {};         // over tensor ranks
  // Where they divide the row, `shape` has this rank's outputs and, of a matrix, before them copies
  // of those that it adds to sums over all outputs (Deal::chain_of): from `first_output` on, of so
  // many. 0: all of them.
  int64_t whole_outputs = 0;
  int64_t first_output = 0;
  int64_t num_lead_outputs = 0;  // these copies
  DType floor = DType::kBF16;    // kF32: kept in f32 in every mode
  bool buffer = false;           // not trained
  bool balances = false;         // a buffer that may follow its experts' loads: a router's bias
  // Not 0: whole numbers from 0 to below this, which in a row are all different; stored as I64 or
  // I32 and held in f32. A buffer with an f32 floor.
  int64_t integers = 0;
  ParamDraw draw = ParamDraw::kConstant;
  float init = 0.0f;
  int bias = kNoKey;  // key of the matrix's bias
  LoraPlace lora = {};
  std::vector<Spelling> others = {};

  [[nodiscard]] bool is_parameter() const { return shape.rank() > 0; }
  // What each rank has of its outputs and, of one whose inputs are gathered, of these; of a row
  // that has an axis.
  [[nodiscard]] Deal output_deal() const;
  [[nodiscard]] Deal input_deal() const;
  // Leaves a rank's outputs of a row that is whole and has an axis.
  void take_share(const TensorShare& share);
  // Held as a panel of the compute type.
  [[nodiscard]] bool is_matrix() const { return shape.rank() == 2 && floor != DType::kF32; }
};

// In checkpoint order.
using ParamRows = std::vector<ParamRow>;

}  // namespace strata::model
