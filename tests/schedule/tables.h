// SPDX-License-Identifier: Apache-2.0
// What the tests of schedules share: the range of shapes, and PyTorch's own tables.
#pragma once
#include <string>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "schedule/csv.h"
#include "schedule/generate.h"

namespace strata::schedule {

inline std::string pytorch_file(const std::string& name) {
  return read_file(std::string(STRATA_SOURCE_DIR) + "/tests/schedule/pytorch/" + name, 1 << 24);
}

inline Table pytorch_table(const std::string& name) {
  return read_csv(pytorch_file(name), name).table;
}

// A row without its idle places.
inline Table without_idle(Table table) {
  for (std::vector<Slot>& row : table.rows) {
    std::erase_if(row, [](const Slot& slot) { return slot.count == 0; });
  }
  return table;
}

inline std::string name_of(const Spec& spec) {
  return std::string(kind_name(spec.kind)) + " p" + std::to_string(spec.num_ranks) + " m" +
         std::to_string(spec.num_microbatches) + " v" + std::to_string(spec.num_chunks);
}

// Every schedule that exists for p in `ranks`, m in 1 to `max_microbatches`, v in 1 to
// `max_chunks`.
inline std::vector<Spec> all_specs(int max_ranks, int max_microbatches, int max_chunks) {
  std::vector<Spec> specs;
  for (const Kind kind :
       {Kind::kGpipe, Kind::kCircular, Kind::k1f1b, Kind::kInterleaved, Kind::kZb1p}) {
    for (int p = 1; p <= max_ranks; ++p) {
      for (int m = 1; m <= max_microbatches; ++m) {
        for (int v = 1; v <= max_chunks; ++v) {
          const Spec spec{.kind = kind, .num_ranks = p, .num_microbatches = m, .num_chunks = v};
          try {
            generate(spec);
            specs.push_back(spec);
          } catch (const Error&) {
          }
        }
      }
    }
  }
  return specs;
}

// The backwards of each run of them in descending order, as PyTorch's looped breadth-first has
// them.
inline Table with_descending_backwards(Table table) {
  for (std::vector<Slot>& row : table.rows) {
    for (Slot& slot : row) {
      Action& action = slot.parts[0];
      if (action.op == Op::kBackward) {
        action.microbatch = table.num_microbatches - 1 - action.microbatch;
      }
    }
  }
  return table;
}

}  // namespace strata::schedule
