// SPDX-License-Identifier: Apache-2.0
// Safetensors files built by hand, independent of our writer, so that any byte can be wrong.
#pragma once
#include <cstdint>
#include <string>

#include "tests/base/temp_dir.h"

namespace strata::testing {

inline std::string data_path(const std::string& name) {
  return std::string(STRATA_SOURCE_DIR) + "/tests/checkpoint/data/" + name;
}

inline std::string little_endian(uint64_t value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

inline std::string safetensors_bytes(const std::string& header, const std::string& data) {
  return little_endian(header.size()) + header + data;
}

// One header entry: "name":{"dtype":...}
inline std::string entry(const std::string& name, const std::string& dtype,
                         const std::string& shape, int64_t begin, int64_t end) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(end) + "]}";
}

}  // namespace strata::testing
