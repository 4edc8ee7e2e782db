// SPDX-License-Identifier: Apache-2.0
// Reads all records of a file: whatever its bytes are, each is whole JSON text or a fault, lines
// grow, and the reader ends.
#pragma once
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "data/record_reader.h"

namespace strata::fuzz {

inline void require(bool condition) {
  if (!condition) std::abort();
}

inline void read_all(const std::string& path, data::Layout layout) {
  try {
    const data::InputFile file(path);
    const auto records = data::make_record_reader(file, layout);
    int64_t line = 0, count = 0;
    while (const auto record = records->next()) {
      require(record->line >= line && record->json.empty() != record->fault.empty());
      line = record->line;
      require(++count <= file.size() + 1);
    }
    require(!records->next());
    require(records->offset() <= file.size());
  } catch (const Error&) {
  }
}

}  // namespace strata::fuzz
