// SPDX-License-Identifier: Apache-2.0
// The container: what is read, and what of hostile files is refused with which words.
#include "checkpoint/gguf/gguf_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "checkpoint/gguf/gguf_model.h"
#include "tests/base/temp_dir.h"
#include "tests/checkpoint/gguf_bytes.h"

namespace strata {
namespace {

using testing::GgufBytes;
using testing::raw;

class GgufFileTest : public ::testing::Test {
 protected:
  std::string write(const std::string& bytes, const std::string& name = "a.gguf") {
    const std::string path = dir_.path() + "/" + name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  std::string fault(const std::string& bytes) {
    try {
      const GgufFile file(write(bytes));
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  void expect_fault(const GgufBytes& bytes, const std::string& words) {
    const std::string got = fault(bytes.bytes());
    EXPECT_NE(got.find(words), std::string::npos) << "got '" << got << "', want '" << words << "'";
  }

  static GgufBytes small() {
    GgufBytes bytes;
    bytes.keys = {testing::key_text("general.architecture", "llama"),
                  testing::key_u32("llama.block_count", 2),
                  testing::key_f32("llama.attention.layer_norm_rms_epsilon", 1e-6f),
                  testing::key_list("tokenizer.ggml.tokens", 8, 2,
                                    testing::gguf_text("a") + testing::gguf_text("b")),
                  testing::key_list("tokenizer.ggml.scores", 6, 2, raw(1.5f) + raw(-2.0f)),
                  testing::gguf_key("general.flag", 7, raw<uint8_t>(1)),
                  testing::gguf_key("general.wide", 10, raw<uint64_t>(7))};
    bytes.tensors = {{"a.weight", {4, 2}, 0, std::string(32, '\1')},
                     {"b.weight", {64}, 8, std::string(68, '\0')},
                     {"c.weight", {3}, 0, std::string(12, '\2')}};
    return bytes;
  }

  testing::TempDir dir_;
};

TEST_F(GgufFileTest, IsReadWhole) {
  const GgufFile file(write(small().bytes()));
  EXPECT_EQ(file.version(), 3);
  const GgufKeys& keys = file.keys();
  EXPECT_EQ(keys.text("general.architecture"), "llama");
  EXPECT_EQ(keys.integer("llama.block_count"), 2);
  EXPECT_EQ(keys.integer("general.wide"), 7);
  EXPECT_EQ(keys.integer("absent", 5), 5);
  EXPECT_TRUE(keys.boolean("general.flag"));
  EXPECT_EQ(keys.number("llama.attention.layer_norm_rms_epsilon"), 1e-6);  // the writer's double
  ASSERT_EQ(keys.texts("tokenizer.ggml.tokens").size(), 2u);
  EXPECT_EQ(keys.texts("tokenizer.ggml.tokens")[1], "b");
  EXPECT_EQ(keys.numbers("tokenizer.ggml.scores")[1], -2.0);
  ASSERT_EQ(file.tensors().size(), 3u);
  EXPECT_EQ(file.tensors()[0].dims, (std::vector<int64_t>{2, 4}));
  EXPECT_EQ(file.tensors()[1].type->name, "Q8_0");
  std::string bytes(12, '\0');
  file.read_bytes(file.tensors()[2], 0, std::as_writable_bytes(std::span(bytes)));
  EXPECT_EQ(bytes, std::string(12, '\2'));
}

TEST_F(GgufFileTest, VersionTwoIsReadToo) {
  GgufBytes bytes = small();
  bytes.version = 2;
  EXPECT_EQ(fault(bytes.bytes()), "");
}

TEST_F(GgufFileTest, AnotherAlignmentIsReadToo) {
  GgufBytes bytes = small();
  bytes.keys.push_back(testing::key_u32("general.alignment", 128));
  bytes.alignment = 128;
  EXPECT_EQ(fault(bytes.bytes()), "");
}

TEST_F(GgufFileTest, AFileCutAnywhereIsAnError) {
  const std::string bytes = small().bytes();
  const size_t end = bytes.size() - (32 - 12);  // the last padding may be missing
  for (size_t size = 0; size < end; ++size) {
    EXPECT_NE(fault(bytes.substr(0, size)), "") << size;
  }
  EXPECT_EQ(fault(bytes.substr(0, end)), "");
}

// No byte of the header, whatever it becomes, does more harm than an error.
TEST_F(GgufFileTest, AnyWrongByteOfTheHeaderIsHarmless) {
  const std::string bytes = small().bytes();
  const size_t header = small().header().size();
  for (size_t at = 0; at < header; ++at) {
    for (const int value : {0x00, 0x01, 0x7f, 0x80, 0xff}) {
      std::string changed = bytes;
      changed[at] = static_cast<char>(value);
      const std::string got = fault(changed);
      EXPECT_TRUE(got.empty() || got.size() < 4000) << at;
    }
  }
}

TEST_F(GgufFileTest, VersionsAndOrdersOfBytesAreNamed) {
  GgufBytes bytes = small();
  bytes.version = 1;
  expect_fault(bytes, "version 1, supported are 2 and 3; convert the model again");
  bytes.version = 4;
  expect_fault(bytes, "version 4, supported are 2 and 3");
  bytes.version = 0x03000000;
  expect_fault(bytes, "big-endian");
  EXPECT_NE(fault("GGML" + std::string(100, '\0')).find("not a GGUF file"), std::string::npos);
}

TEST_F(GgufFileTest, CountsAreHeldAgainstTheFile) {
  for (const uint64_t count : {uint64_t{1} << 20, uint64_t{1} << 40, ~uint64_t{0}}) {
    GgufBytes bytes = small();
    bytes.keys.push_back(testing::key_list("general.list", 4, count, ""));
    expect_fault(bytes, "truncated?");
    bytes.keys.back() = testing::key_list("general.list", 8, count, "");
    expect_fault(bytes, "truncated?");
    bytes.keys.back() = raw(count) + "name";
    expect_fault(bytes, "truncated?");
  }
  std::string whole = small().bytes();
  whole.replace(8, 8, raw(~uint64_t{0}));
  EXPECT_NE(fault(whole).find("tensors and 7 keys, at most"), std::string::npos);
}

// A file that is whole, whose header is longer than any that is read.
TEST_F(GgufFileTest, ItIsSaidThatAHeaderIsTooLong) {
  constexpr uint64_t kMiB = 1 << 20;
  for (const std::string& value : {testing::gguf_key("general.x", 8, raw(300 * kMiB)),
                                   testing::key_list("general.x", 0, 300 * kMiB, "")}) {
    GgufBytes bytes = small();
    bytes.keys.push_back(value);
    const std::string path = write(bytes.bytes());
    std::filesystem::resize_file(path, 400 * kMiB);
    const std::string got = strata::testing::error_of([&] { const GgufFile file(path); });
    EXPECT_NE(got.find("bytes are left of the largest header"), std::string::npos) << got;
    EXPECT_EQ(got.find("truncated"), std::string::npos) << got;
  }
}

TEST_F(GgufFileTest, KeysAreChecked) {
  const auto with = [](const std::string& key) {
    GgufBytes bytes = small();
    bytes.keys.push_back(key);
    return bytes;
  };
  expect_fault(with(testing::key_u32("llama.block_count", 2)), "is there twice");
  expect_fault(with(testing::gguf_key("x", 13, "")), "unknown type of value 13");
  expect_fault(with(testing::key_list("x", 9, 0, "")), "a list of items of type 9");
  expect_fault(with(testing::gguf_key("x", 7, raw<uint8_t>(2))), "a bool is 2");
  expect_fault(with(testing::gguf_key("x", 10, raw(~uint64_t{0}))), "does not fit 63 bits");
  expect_fault(with(testing::key_u32("general.alignment", 48)), "want a power of two");
  expect_fault(with(testing::key_u32("general.alignment", 0)), "want a power of two");
  expect_fault(with(testing::key_u32("", 0)), "a key without a name");
}

TEST_F(GgufFileTest, TensorsAreChecked) {
  const auto with = [](size_t index, auto change) {
    GgufBytes bytes = small();
    change(bytes.tensors[index]);
    return bytes;
  };
  expect_fault(with(0, [](auto& t) { t.name = "c.weight"; }), "is there twice");
  expect_fault(with(0, [](auto& t) { t.name = ""; }), "without a name");
  expect_fault(with(0, [](auto& t) { t.dims = {}; }), "has 0 dimensions");
  expect_fault(with(0, [](auto& t) { t.dims = {1, 1, 1, 1, 1}; }), "has 5 dimensions");
  expect_fault(with(0, [](auto& t) { t.dims = {0, 2}; }), "cannot be counted");
  expect_fault(with(0, [](auto& t) { t.dims = {uint64_t{1} << 40, uint64_t{1} << 40}; }),
               "cannot be counted");
  expect_fault(with(0, [](auto& t) { t.dims = {~uint64_t{0}, 1}; }), "cannot be counted");
  expect_fault(with(0, [](auto& t) { t.dims = {uint64_t{1} << 61, 2}; }), "63 bits can count");
  expect_fault(with(0, [](auto& t) { t.type = 4; }), "was removed from ggml");
  expect_fault(with(0, [](auto& t) { t.type = 99; }), "type 99 is not known; known are F32");
  expect_fault(with(1, [](auto& t) { t.dims = {63}; }), "no whole blocks of 32 (Q8_0)");
  expect_fault(with(1, [](auto& t) { t.offset = 0; }), "want 32, right behind");
  expect_fault(with(1, [](auto& t) { t.offset = 64; }), "want 32, right behind");
  expect_fault(with(2, [](auto& t) { t.dims = {3000}; }), "truncated");
  const std::string two = small().bytes() + small().bytes();
  EXPECT_NE(fault(two).find("joined with cat"), std::string::npos);
}

TEST_F(GgufFileTest, WhatIsNoModelIsRefusedByName) {
  for (const char* kind : {"adapter", "mmproj", "imatrix"}) {
    GgufBytes bytes = small();
    bytes.keys.push_back(testing::key_text("general.type", kind));
    try {
      const GgufModel model(write(bytes.bytes()));
      ADD_FAILURE() << kind;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(kind), std::string::npos);
      EXPECT_EQ(error.code, ErrorCode::kUnsupported);
    }
  }
}

class GgufPartsTest : public GgufFileTest {
 protected:
  void write_part(int number, int count, std::vector<testing::GgufTensorBytes> tensors,
                  int total = 2) {
    GgufBytes bytes;
    bytes.keys = {
        testing::gguf_key("split.no", 2, raw<uint16_t>(static_cast<uint16_t>(number - 1))),
        testing::gguf_key("split.count", 2, raw<uint16_t>(static_cast<uint16_t>(count))),
        testing::gguf_key("split.tensors.count", 5, raw<int32_t>(total))};
    if (number == 1) bytes.keys.push_back(testing::key_text("general.architecture", "llama"));
    bytes.tensors = std::move(tensors);
    write(bytes.bytes(), name(number, count));
  }
  static std::string name(int number, int count) {
    return "m-0000" + std::to_string(number) + "-of-0000" + std::to_string(count) + ".gguf";
  }
  std::string model_fault(const std::string& path) {
    try {
      const GgufModel model(path);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
};

TEST(GgufKeys, NumbersAreBooleansWhereTheyAreZeroOrOne) {
  GgufKeys keys("f");
  keys.add("a", {.list = GgufValue::Integers{0, 1}, .is_array = true});
  keys.add("b", {.list = GgufValue::Integers{0, 6}, .is_array = true});
  EXPECT_EQ(keys.booleans("a"), (std::vector<bool>{false, true}));
  EXPECT_NE(
      testing::error_of([&] { static_cast<void>(keys.booleans("b")); }).find("got 6, want 0 or 1"),
      std::string::npos);
}

TEST_F(GgufPartsTest, AnyPartOrTheFolderIsTheModel) {
  const testing::GgufTensorBytes a = {"a", {4}, 0, std::string(16, '\1')};
  const testing::GgufTensorBytes b = {"b", {4}, 0, std::string(16, '\1')};
  write_part(1, 3, {});
  write_part(2, 3, {a});
  EXPECT_NE(model_fault(dir_.path() + "/" + name(2, 3)).find("part 3 of 3 is missing"),
            std::string::npos);
  write_part(3, 3, {a});
  EXPECT_NE(model_fault(dir_.path()).find("is in another part, too"), std::string::npos);
  write_part(3, 3, {b});
  for (const std::string& path :
       {dir_.path(), dir_.path() + "/" + name(1, 3), dir_.path() + "/" + name(3, 3)}) {
    const GgufModel model(path);
    EXPECT_EQ(model.tensors().size(), 2u);
    EXPECT_EQ(model.architecture(), "llama");
  }
  write_part(1, 3, {}, 5);
  EXPECT_NE(model_fault(dir_.path()).find("have 2 tensors, split.tensors.count says 5"),
            std::string::npos);
  write("", "other.gguf");
  EXPECT_NE(model_fault(dir_.path()).find("holds 2 models in GGUF; give one of"),
            std::string::npos);
}

}  // namespace
}  // namespace strata
