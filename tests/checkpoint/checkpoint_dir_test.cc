// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/checkpoint_dir.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>

#include "base/rng.h"
#include "tests/checkpoint/safetensors_bytes.h"

namespace strata {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::entry;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::read_bytes;
using testing::safetensors_bytes;
using testing::TempDir;
using testing::write_bytes;

constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kFirst = "model-00001-of-00002.safetensors";
constexpr const char* kSecond = "model-00002-of-00002.safetensors";

std::string shard(const std::string& entries, const std::string& data) {
  return safetensors_bytes("{" + entries + "}", data);
}

std::string index_of(const std::map<std::string, std::string>& weight_map) {
  std::string out = R"({"metadata": {"total_size": 14, "note": {"a": [1, 2.0]}}, "weight_map": {)";
  for (const auto& [name, file] : weight_map) {
    out += (out.back() == '{' ? "\"" : ",\"") + name + "\":\"" + file + "\"";
  }
  return out + "}}";
}

const std::map<std::string, std::string> kWeightMap = {
    {"b", kFirst}, {"c", kFirst}, {"a", kSecond}};

class ShardedDir : public ::testing::Test {
 protected:
  ShardedDir() {
    write_bytes(dir_.file(kFirst),
                shard(entry("c", "F32", "[1]", 0, 4) + "," + entry("b", "BF16", "[1]", 4, 6),
                      std::string("\0\0\x80\x3f\x80\x3f", 6)));
    write_bytes(dir_.file(kSecond),
                shard(entry("a", "F16", "[2,2]", 0, 8), std::string("\0\x3c\0\0\0\0\0\x40", 8)));
    write_bytes(dir_.file(kIndex), index_of(kWeightMap));
  }
  [[nodiscard]] std::string fault() const {
    return error_of([&] { CheckpointDir checkpoint(dir_.path()); });
  }
  TempDir dir_;
};

TEST_F(ShardedDir, ListsAndReadsAllShards) {
  const CheckpointDir checkpoint(dir_.path());
  EXPECT_THAT(checkpoint.shards(), ElementsAre(kFirst, kSecond));
  ASSERT_EQ(checkpoint.tensors().size(), 3u);
  EXPECT_EQ(checkpoint.tensors()[0].info.name, "c");
  EXPECT_EQ(checkpoint.tensors()[2].shard, 1u);
  const CheckpointTensor* a = checkpoint.find("a");
  ASSERT_NE(a, nullptr);
  float out[4];
  checkpoint.read_f32(*a, 0, 4, out);
  EXPECT_THAT(out, ElementsAre(1.0f, 0.0f, 0.0f, 2.0f));
  uint16_t bits = 0;
  checkpoint.read(*checkpoint.find("b"), 0, 1, &bits);
  EXPECT_EQ(bits, 0x3f80);
  EXPECT_EQ(checkpoint.find("d"), nullptr);
}

TEST_F(ShardedDir, SingleFileIsPreferred) {
  write_bytes(dir_.file("model.safetensors"), shard(entry("only", "F32", "[1]", 0, 4), "1234"));
  EXPECT_EQ(CheckpointDir(dir_.path()).tensors()[0].info.name, "only");
}

// Whole numbers are written and read as such, wider elements before narrower ones.
TEST(CheckpointDir, KeepsWholeNumbers) {
  const TempDir dir;
  const CheckpointLayout layout = {
      .entries = {{{.name = "x", .dtype = DType::kBF16, .shape = {1}}, "model.safetensors"},
                  {{.name = "narrow", .shape = {3}, .integer_bytes = 4}, "model.safetensors"},
                  {{.name = "wide", .shape = {1, 2}, .integer_bytes = 8}, "model.safetensors"}}};
  CheckpointWriter writer(dir.path(), layout);
  const int64_t wide[] = {int64_t{1} << 40, -1};
  const int32_t narrow[] = {7, -8, 9};
  const float x[] = {1.0f};
  writer.append("wide", std::as_bytes(std::span(wide)));
  writer.append("narrow", std::as_bytes(std::span(narrow)));
  writer.append_f32("x", x);
  writer.commit();
  const CheckpointDir checkpoint(dir.path());
  const CheckpointTensor& first = *checkpoint.find("wide");
  EXPECT_EQ(first.info.dtype_name, "I64");
  EXPECT_FALSE(first.info.readable);
  EXPECT_THAT(checkpoint.read_integers(first, 0, 2), ElementsAre(int64_t{1} << 40, -1));
  EXPECT_EQ(checkpoint.find("narrow")->info.dtype_name, "I32");
  EXPECT_THAT(checkpoint.read_integers(*checkpoint.find("narrow"), 1, 2), ElementsAre(-8, 9));
  std::map<std::string, int> kept;
  for (const auto& kept_entry : checkpoint.layout().entries) {
    kept[kept_entry.tensor.name] = kept_entry.tensor.integer_bytes;
  }
  EXPECT_EQ(kept, (std::map<std::string, int>{{"x", 0}, {"narrow", 4}, {"wide", 8}}));
}

TEST(CheckpointDir, NamesWhatADirectoryLacks) {
  const TempDir dir;
  EXPECT_THAT(error_of([&] { CheckpointDir checkpoint(dir.path()); }),
              AllOf(HasSubstr(dir.path()), HasSubstr("neither model.safetensors nor")));
}

TEST_F(ShardedDir, NamesThatLeaveTheDirectoryAreRefused) {
  for (const char* name : {"../x.safetensors", "/etc/passwd", "..", ".", "", "sub/x.safetensors",
                           "a\\\\b", "nul\\u0000.safetensors"}) {
    write_bytes(dir_.file(kIndex), index_of({{"a", name}}));
    EXPECT_THAT(fault(), HasSubstr("wanted the name of a file in this directory")) << name;
  }
}

TEST_F(ShardedDir, MissingShardsAreAllNamed) {
  write_bytes(dir_.file(kIndex), index_of({{"a", "x.safetensors"}, {"b", "y.safetensors"}}));
  EXPECT_THAT(fault(), AllOf(HasSubstr("2 faults"), HasSubstr("'x.safetensors' is not in"),
                             HasSubstr("'y.safetensors' is not in")));
}

TEST_F(ShardedDir, IndexAndShardsMustAgreeBothWays) {
  write_bytes(dir_.file(kIndex), index_of({{"a", kFirst}, {"b", kFirst}, {"d", kSecond}}));
  EXPECT_THAT(fault(), AllOf(HasSubstr("3 faults"), HasSubstr("'c' of shard"),
                             HasSubstr("'d' is not in shard"),
                             HasSubstr("'a' is in shard '" + std::string(kSecond) +
                                       "', the index says '" + kFirst)));
}

TEST_F(ShardedDir, TensorInTwoShardsIsRefused) {
  write_bytes(dir_.file(kSecond),
              shard(entry("a", "F16", "[2,2]", 0, 8) + "," + entry("b", "F16", "[1]", 8, 10),
                    "1234567890"));
  EXPECT_THAT(fault(), HasSubstr("tensor 'b' is in shard '" + std::string(kSecond) +
                                 "' and in another one"));
}

TEST_F(ShardedDir, BadIndexIsRefused) {
  const std::map<std::string, std::string> cases = {
      {"[]", "wanted '{'"},
      {"{}", "weight_map"},
      {R"({"weight_map": []})", "wanted '{'"},
      {R"({"weight_map": {"a": 1}})", "wanted '\"'"},
      {R"({"weight_map": {"a": "x", "a": "y"}})", "appears twice"},
      {R"({"weight_map": {"a": "x"}} x)", "after the end"},
      {R"({"weight_map": {"a": ")", "closing quote"},
  };
  for (const auto& [text, message] : cases) {
    write_bytes(dir_.file(kIndex), text);
    EXPECT_THAT(fault(), AllOf(HasSubstr(message), HasSubstr(kIndex))) << text;
  }
}

TEST_F(ShardedDir, DamagedShardIsNamed) {
  write_bytes(dir_.file(kSecond), shard(entry("a", "F16", "[2,2]", 0, 8), "1234567"));
  EXPECT_THAT(fault(), AllOf(HasSubstr(kSecond), HasSubstr("tensor 'a'"), HasSubstr("truncated?")));
}

void copy_tensors(const CheckpointDir& from, CheckpointWriter& to) {
  for (const TensorDecl& tensor : to.tensors()) {
    const int64_t count = tensor.shape.num_elements();
    std::vector<float> values(static_cast<size_t>(count));
    from.read_f32(*from.find(tensor.name), 0, count, values.data());
    to.append_f32(tensor.name, values);
  }
}

TEST_F(ShardedDir, SavingKeepsNamesTypesShapesShardsAndIndex) {
  const CheckpointDir before(dir_.path());
  const TempDir out;
  CheckpointWriter writer(out.file("new/dir"), before.layout());
  copy_tensors(before, writer);
  writer.commit();
  const CheckpointDir after(out.file("new/dir"));
  EXPECT_THAT(after.shards(), ElementsAre(kFirst, kSecond));
  ASSERT_EQ(after.tensors().size(), before.tensors().size());
  for (const CheckpointTensor& tensor : before.tensors()) {
    const CheckpointTensor* copy = after.find(tensor.info.name);
    ASSERT_NE(copy, nullptr);
    EXPECT_EQ(copy->shard, tensor.shard);
    EXPECT_EQ(copy->info.dtype, tensor.info.dtype);
    EXPECT_EQ(copy->info.shape, tensor.info.shape);
    std::string a(static_cast<size_t>(tensor.info.num_bytes()), 'a');
    std::string b(a.size(), 'b');
    before.read(tensor, 0, tensor.info.shape.num_elements(), a.data());
    after.read(*copy, 0, tensor.info.shape.num_elements(), b.data());
    EXPECT_EQ(a, b);
  }
  EXPECT_EQ(read_bytes(out.file("new/dir/") + kIndex),
            "{\n  \"metadata\": {\n    \"note\": {\"a\":[1,2.0]},\n    \"total_size\": 14\n  },\n"
            "  \"weight_map\": {\n    \"a\": \"model-00002-of-00002.safetensors\",\n"
            "    \"b\": \"model-00001-of-00002.safetensors\",\n"
            "    \"c\": \"model-00001-of-00002.safetensors\"\n  }\n}\n");
  EXPECT_THAT(read_bytes(out.file("new/dir/") + kFirst),
              HasSubstr(R"("__metadata__":{"format":"pt"})"));
}

TEST_F(ShardedDir, ErasedEntriesAreNotWritten) {
  const CheckpointDir before(dir_.path());
  CheckpointLayout layout = before.layout();
  std::erase_if(layout.entries, [](const auto& entry) { return entry.tensor.name == "a"; });
  const TempDir out;
  CheckpointWriter writer(out.path(), layout);
  copy_tensors(before, writer);
  writer.commit();
  EXPECT_THAT(CheckpointDir(out.path()).shards(), ElementsAre(kFirst));
  EXPECT_THAT(read_bytes(out.file(kIndex)), HasSubstr("\"total_size\": 6\n"));
}

TEST_F(ShardedDir, SavingOverItselfAndAbandoningLeaveOtherFilesAlone) {
  write_bytes(dir_.file("config.json"), "{}");
  const auto names = dir_.names();
  const std::string index = read_bytes(dir_.file(kIndex));
  const CheckpointDir open(dir_.path());
  {
    CheckpointWriter abandoned(dir_.path(), open.layout());
    copy_tensors(open, abandoned);
  }
  EXPECT_EQ(dir_.names(), names);
  EXPECT_EQ(read_bytes(dir_.file(kIndex)), index);
  CheckpointWriter writer(dir_.path(), open.layout());
  copy_tensors(open, writer);
  writer.commit();
  EXPECT_EQ(dir_.names(), names);
  EXPECT_EQ(CheckpointDir(dir_.path()).tensors().size(), 3u);
}

// Another form of checkpoint in the directory must not shadow, or be mixed with, what is written.
TEST_F(ShardedDir, TheOtherFormIsReplaced) {
  const CheckpointDir sharded(dir_.path());
  const TempDir out;
  const CheckpointLayout single{.entries = {{{"w", DType::kF32, {1}}, "model.safetensors"}}};
  const float value[] = {3};
  const auto write_single = [&] {
    CheckpointWriter writer(out.path(), single);
    writer.append_f32("w", value);
    writer.commit();
  };
  const auto write_sharded = [&] {
    CheckpointWriter writer(out.path(), sharded.layout());
    copy_tensors(sharded, writer);
    writer.commit();
  };
  write_single();
  write_sharded();
  EXPECT_THAT(CheckpointDir(out.path()).shards(), ElementsAre(kFirst, kSecond));
  write_single();
  EXPECT_THAT(CheckpointDir(out.path()).shards(), ElementsAre("model.safetensors"));
  EXPECT_FALSE(file_exists(out.file(kIndex)));
}

void write_filled(const std::string& dir, const CheckpointLayout& layout, float value) {
  CheckpointWriter writer(dir, layout);
  for (const TensorDecl& tensor : writer.tensors()) {
    writer.append_f32(tensor.name,
                      std::vector<float>(static_cast<size_t>(tensor.shape.num_elements()), value));
  }
  writer.commit();
}

// A child overwrites a sharded checkpoint again and again, with other values each time, and is
// killed: the directory then holds one of them whole, or refuses to load. The next save mends it.
TEST(CheckpointWriter, KilledAtAnyMomentNeverMixesTwoCheckpoints) {
  const TempDir dir;
  CheckpointLayout layout{.entries = {}, .indexed = true};
  for (int shard = 0; shard < 12; ++shard) {
    const std::string name = std::to_string(shard);
    layout.entries.push_back({{name, DType::kF32, {8}}, "shard-" + name + ".safetensors"});
  }
  int whole = 0;
  for (uint64_t round = 0; round < 15; ++round) {
    write_filled(dir.path(), layout, 0);
    const pid_t child = ::fork();
    if (child == 0) {
      for (float value = 1;; ++value) write_filled(dir.path(), layout, value);
    }
    ASSERT_GT(child, 0);
    ::usleep(static_cast<useconds_t>(1000 + Counter{5, round}.uniform(0) * 15'000));
    ::kill(child, SIGKILL);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    const std::string fault = error_of([&] { CheckpointDir checkpoint(dir.path()); });
    if (!fault.empty()) continue;
    ++whole;
    const CheckpointDir checkpoint(dir.path());
    ASSERT_EQ(checkpoint.tensors().size(), 12u);
    float first = -1;
    checkpoint.read_f32(checkpoint.tensors()[0], 0, 1, &first);
    for (const CheckpointTensor& tensor : checkpoint.tensors()) {
      std::vector<float> values(8);
      checkpoint.read_f32(tensor, 0, 8, values.data());
      EXPECT_EQ(values, std::vector<float>(8, first)) << tensor.info.name;
    }
  }
  EXPECT_GT(whole, 0);
}

TEST(CheckpointDir, UnreadableTensorsAreListedAndNotInTheLayout) {
  const TempDir dir;
  write_bytes(dir.file("model.safetensors"),
              shard(entry("ids", "U8", "[8]", 0, 8) + "," + entry("w", "F32", "[1]", 8, 12),
                    "123456789012"));
  const CheckpointDir checkpoint(dir.path());
  EXPECT_NE(checkpoint.find("ids"), nullptr);
  const CheckpointLayout layout = checkpoint.layout();
  ASSERT_EQ(layout.entries.size(), 1u);
  EXPECT_EQ(layout.entries[0].tensor.name, "w");
  EXPECT_FALSE(layout.indexed);
}

}  // namespace
}  // namespace strata
