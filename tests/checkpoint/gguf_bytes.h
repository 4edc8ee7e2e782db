// SPDX-License-Identifier: Apache-2.0
// GGUF files built by hand, independent of gguf-py, so that any byte can be wrong.
#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace strata::testing {

template <typename T>
std::string raw(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}
inline std::string gguf_text(const std::string& text) { return raw<uint64_t>(text.size()) + text; }
inline std::string gguf_key(const std::string& key, uint32_t type, const std::string& value) {
  return gguf_text(key) + raw(type) + value;
}
inline std::string key_text(const std::string& key, const std::string& value) {
  return gguf_key(key, 8, gguf_text(value));
}
inline std::string key_u32(const std::string& key, uint32_t value) {
  return gguf_key(key, 4, raw(value));
}
inline std::string key_f32(const std::string& key, float value) {
  return gguf_key(key, 6, raw(value));
}
inline std::string key_list(const std::string& key, uint32_t type, uint64_t count,
                            const std::string& items) {
  return gguf_key(key, 9, raw(type) + raw(count) + items);
}

struct GgufTensorBytes {
  std::string name;
  std::vector<uint64_t> dims;  // the fastest first, as in the file
  uint32_t type = 0;
  std::string data;
  int64_t offset = -1;  // -1: where it belongs
};

struct GgufBytes {
  std::vector<std::string> keys;
  std::vector<GgufTensorBytes> tensors;
  uint64_t alignment = 32;
  uint32_t version = 3;

  [[nodiscard]] std::string header() const {
    std::string out =
        "GGUF" + raw(version) + raw<uint64_t>(tensors.size()) + raw<uint64_t>(keys.size());
    for (const std::string& key : keys) out += key;
    uint64_t offset = 0;
    for (const GgufTensorBytes& tensor : tensors) {
      out += gguf_text(tensor.name) + raw<uint32_t>(static_cast<uint32_t>(tensor.dims.size()));
      for (const uint64_t dim : tensor.dims) out += raw(dim);
      out +=
          raw(tensor.type) + raw(tensor.offset < 0 ? offset : static_cast<uint64_t>(tensor.offset));
      offset += padded(tensor.data.size());
    }
    return out;
  }
  [[nodiscard]] std::string bytes() const {
    std::string out = header();
    out.resize(padded(out.size()));
    for (const GgufTensorBytes& tensor : tensors) {
      out += tensor.data;
      out.resize(padded(out.size()));
    }
    return out;
  }

 private:
  [[nodiscard]] size_t padded(size_t size) const {
    return (size + alignment - 1) / alignment * alignment;
  }
};

}  // namespace strata::testing
