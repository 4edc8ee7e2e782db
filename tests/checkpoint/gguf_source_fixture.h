// SPDX-License-Identifier: Apache-2.0
// A test with a GGUF file of a small model in a folder of its own, and the faults of reading it.
#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/gguf/gguf_source.h"
#include "tests/base/temp_dir.h"
#include "tests/checkpoint/gguf_bytes.h"

namespace strata::testing {

class GgufSourceTest : public ::testing::Test {
 protected:
  std::string write(const GgufBytes& bytes) {
    write_bytes(dir_.file("a.gguf"), bytes.bytes());
    return dir_.file("a.gguf");
  }
  std::string config_fault(const GgufBytes& bytes) {
    const std::string path = write(bytes);
    return error_of([&] { static_cast<void>(gguf_texts(path).read("config.json", 1 << 20)); });
  }
  std::string source_fault(const GgufBytes& bytes) {
    const std::string path = write(bytes);
    return error_of([&] { const GgufSource source(path); });
  }
  // Values that count up.
  static GgufTensorBytes counting(const std::string& name, std::vector<uint64_t> dims) {
    uint64_t count = 1;
    for (const uint64_t dim : dims) count *= dim;
    std::string data;
    for (uint64_t i = 0; i < count; ++i) data += raw(static_cast<float>(i));
    return {name, std::move(dims), 0, data};
  }
  static GgufBytes model(const std::string& arch) {
    GgufBytes bytes;
    const auto size = [&](const std::string& key, uint32_t value) {
      return key_u32(arch + "." + key, value);
    };
    bytes.keys = {key_text("general.architecture", arch),
                  size("block_count", 1),
                  size("context_length", 64),
                  size("embedding_length", 8),
                  size("feed_forward_length", 16),
                  size("attention.head_count", 2),
                  size("attention.head_count_kv", 1),
                  key_f32(arch + ".attention.layer_norm_rms_epsilon", 1e-5f)};
    bytes.tensors = {counting("token_embd.weight", {8, 10})};
    return bytes;
  }

  TempDir dir_;
};

}  // namespace strata::testing
