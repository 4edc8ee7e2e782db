// SPDX-License-Identifier: Apache-2.0
// Reads tests/data/text, which tools/golden/make_text_golden.py writes.
#pragma once
#include <boost/json.hpp>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"

namespace strata::text {

inline std::string golden_path(const std::string& name) {
  return std::string(STRATA_SOURCE_DIR) + "/tests/data/text/" + name;
}

inline uint64_t fnv(std::string_view data, uint64_t value = 0xCBF29CE484222325u) {
  for (const char c : data) value = (value ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
  return value;
}

inline std::string ids_bytes(const std::vector<int32_t>& ids) {
  return {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t)};
}

// Length-prefixed strings.
inline std::vector<std::string> read_samples() {
  const std::string data = read_file(golden_path("samples.bin"), 1 << 26);
  std::vector<std::string> out;
  for (size_t pos = 0; pos < data.size();) {
    uint32_t size = 0;
    std::memcpy(&size, data.data() + pos, sizeof(size));
    out.push_back(data.substr(pos + sizeof(size), size));
    pos += sizeof(size) + size;
  }
  return out;
}

inline std::vector<boost::json::value> read_lines(const std::string& name) {
  const std::string data = read_file(golden_path(name), 1 << 26);
  std::vector<boost::json::value> out;
  for (size_t pos = 0; pos < data.size();) {
    const size_t end = data.find('\n', pos);
    out.push_back(boost::json::parse(data.substr(pos, end - pos)));
    pos = end + 1;
  }
  return out;
}

inline std::string text_of(const boost::json::value& value) {
  return {value.as_string().data(), value.as_string().size()};
}

}  // namespace strata::text
