// SPDX-License-Identifier: Apache-2.0
// Models in GGUF whose weights stay in 4 to 8 bits against the same files dequantised to bf16:
// every byte that `strata probe` writes. The files have random blocks of every type, which differ
// by layer and parameter.
#include "checkpoint/gguf/narrow.h"

#include <cctype>

#include "checkpoint/gguf/gguf_file.h"
#include "tests/golden/narrow_models.h"

namespace strata::golden {
namespace {

// Types in turn, those without a form among them.
constexpr const char* kTypes[] = {"Q4_0", "Q8_0", "Q4_K", "Q6_K",   "Q5_0", "MXFP4", "IQ4_NL",
                                  "Q5_K", "Q4_1", "Q3_K", "IQ4_XS", "Q5_1", "Q2_K",  "NVFP4"};

const GgufType& type_of(std::string_view name) {
  for (uint32_t id = 0; id < 64; ++id) {
    const GgufType* type = find_gguf_type(id);
    if (type != nullptr && type->name == name) return *type;
  }
  ADD_FAILURE() << name;
  return *find_gguf_type(0);
}

// Where a block's f16 scales are, and the largest of what they multiply.
struct Scales {
  std::vector<size_t> places;
  double largest;
};
Scales scales_of(std::string_view name) {
  if (name == "Q4_0") return {{0}, 8};
  if (name == "Q8_0") return {{0}, 128};
  if (name == "Q5_0") return {{0}, 16};
  if (name == "IQ4_NL") return {{0}, 127};
  if (name == "Q4_1") return {{0, 2}, 15};
  if (name == "Q5_1") return {{0, 2}, 31};
  if (name == "Q4_K") return {{0, 2}, 15.0 * 63};
  if (name == "Q5_K") return {{0, 2}, 31.0 * 63};
  if (name == "Q6_K") return {{208}, 32.0 * 128};
  if (name == "Q3_K") return {{108}, 4.0 * 32};
  if (name == "Q2_K") return {{80, 82}, 3.0 * 15};
  if (name == "IQ4_XS") return {{0}, 127.0 * 32};
  return {{}, 1};
}

// Random blocks whose values are of the size of weights.
std::string random_blocks(const GgufType& type, int64_t count, uint64_t& state) {
  std::string bytes(static_cast<size_t>(count * type.block_bytes), '\0');
  const auto next = [&] {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint8_t>(state >> 56);
  };
  for (char& byte : bytes) byte = static_cast<char>(next());
  const Scales scales = scales_of(type.name);
  for (int64_t b = 0; b < count; ++b) {
    char* const block = bytes.data() + b * type.block_bytes;
    for (const size_t place : scales.places) {
      const double value =
          0.1 / scales.largest * (0.5 + next() / 512.0) * (next() % 2 == 0 ? 1 : -1);
      const uint16_t half = float_to_f16(static_cast<float>(value));
      std::memcpy(block + place, &half, sizeof(half));
    }
    if (type.name == "MXFP4") block[0] = static_cast<char>(120 + next() % 3);
    for (int g = 0; g < 4 && type.name == "NVFP4"; ++g)
      block[g] = static_cast<char>(0x30 + next() % 16);
  }
  return bytes;
}

template <typename T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// The scale of a tensor in NVFP4, or of each of its experts: about what brings blocks to the size
// of weights.
template <typename Add>
void add_scales(const GgufTensor& tensor, uint64_t& state, const Add& add) {
  const int64_t count = tensor.dims.size() == 3 ? tensor.dims.front() : 1;
  std::string scales;
  for (int64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    put<float>(scales, 0.02f + 0.02f * static_cast<float>(state >> 40) * 0x1p-24f);
  }
  const std::string base = tensor.name.substr(0, tensor.name.rfind(".weight"));
  add(base + ".scale", {count}, type_of("F32"), scales);
  add(base + ".input_scale", {1}, type_of("F32"), scales.substr(0, sizeof(float)));
}

// The file with matrices as random blocks, types in turn; the keys' bytes as they are.
void write_narrow_file(const std::string& from, const std::string& to, size_t first_type) {
  const std::string bytes = read_file(from, 1 << 28);
  const GgufFile file(from);
  const std::string first = file.tensors().front().name;
  // Infos follow the keys; the first tensor's name is in no key before them.
  std::string length;
  put<uint64_t>(length, first.size());
  const size_t infos = bytes.find(length + first);
  ASSERT_NE(infos, std::string::npos);
  std::string header = bytes.substr(0, infos);
  std::string data;
  uint64_t state = 42 + first_type;
  size_t turn = first_type;
  uint64_t num_tensors = 0;
  const auto add = [&](const std::string& name, const std::vector<int64_t>& dims,
                       const GgufType& type, const std::string& own) {
    ++num_tensors;
    put<uint64_t>(header, name.size());
    header += name;
    put<uint32_t>(header, static_cast<uint32_t>(dims.size()));
    for (size_t i = dims.size(); i > 0; --i)
      put<uint64_t>(header, static_cast<uint64_t>(dims[i - 1]));
    put<uint32_t>(header, type.id);
    put<uint64_t>(header, data.size());
    data += own;
    data.resize((data.size() + 31) / 32 * 32);
  };
  for (const GgufTensor& tensor : file.tensors()) {
    const GgufType* type = tensor.type;
    std::string own(static_cast<size_t>(tensor.end - tensor.begin), '\0');
    file.read_bytes(tensor, 0, std::as_writable_bytes(std::span(own)));
    if (type->name == "BF16" && tensor.dims.size() > 1) {
      const GgufType* wanted = &type_of(kTypes[turn++ % std::size(kTypes)]);
      if (tensor.columns() % wanted->block_elements != 0) wanted = &type_of("Q8_0");
      if (tensor.columns() % wanted->block_elements == 0) {
        type = wanted;
        own = random_blocks(*type, tensor.rows() * tensor.columns() / type->block_elements, state);
      }
    }
    add(tensor.name, tensor.dims, *type, own);
    if (type->name == "NVFP4") add_scales(tensor, state, add);
  }
  constexpr size_t kNumTensorsAt = 8;
  std::memcpy(header.data() + kNumTensorsAt, &num_tensors, sizeof(num_tensors));
  header.resize((header.size() + 31) / 32 * 32);
  std::ofstream(to, std::ios::binary) << header << data;
}

class NarrowModels : public NarrowModelTest {
 protected:
  void SetUp() override {
    NarrowModelTest::SetUp();
    if (HasFatalFailure()) return;
    run(fmt::format("convert --model '{}' --to gguf --type bf16 --out '{}'", folder_.file("model"),
                    folder_.file("plain.gguf")));
  }
  // The model's file, with the types beginning at another one.
  void make(size_t first_type) {
    write_narrow_file(folder_.file("plain.gguf"), folder_.file("narrow.gguf"), first_type);
  }
};

TEST_P(NarrowModels, EqualTheirBf16Copies) {
  size_t first_type = 0;
  const std::pair<const char*, const char*> runs[] = {{"avx512_bf16", "full"},
                                                      {"avx2", "minimal_offloaded"},
                                                      {"avx512", "minimal"},
                                                      {"reference", "minimal_offloaded"}};
  for (const auto& [path, recompute] : runs) {
    SCOPED_TRACE(path);
    make(first_type);
    first_type += 3;
    ::setenv("STRATA_CPU_PATH", path, 1);
    if (forced_path_exists()) {
      const Tensors want = probe("narrow.gguf", "bf16");
      expect_equal(probe("narrow.gguf", "narrow", {"--threads", "2"}), want);
      expect_equal(probe("narrow.gguf", "auto", {"--threads", "1", "--recompute", recompute}),
                   want);
    }
    ::unsetenv("STRATA_CPU_PATH");
  }
}

TEST_P(NarrowModels, EqualTheirBf16CopiesInStages) {
  if (!forced_path_exists()) GTEST_SKIP() << "this CPU lacks the forced path";
  make(1);
  expect_equal(probe("narrow.gguf", "narrow", {"--stages", "2"}), probe("narrow.gguf", "bf16"));
}

INSTANTIATE_TEST_SUITE_P(Families, NarrowModels, ::testing::ValuesIn(narrow_models()),
                         [](const auto& info) { return std::string(info.param.golden); });

// The program's own tiny model in GGUF and in bitsandbytes' nf4.
class NarrowCommands : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string type = GetParam();
    run(fmt::format("convert --model '{}/models/tiny-qwen3' {} --type {} --out '{}'",
                    STRATA_SOURCE_DIR, type == "nf4" ? "" : "--to gguf", type, file_));
  }
  std::string run(const std::string& arguments, int want = 0) {
    std::string printed;
    EXPECT_EQ(run_program(arguments, folder_, &printed), want) << arguments << "\n" << printed;
    return printed;
  }
  // The adapter of three steps.
  std::string trained(const std::string& name, const std::string& options) {
    const std::string out = folder_.file(name);
    printed_ =
        run(fmt::format("train --model '{}' --data '{}/examples/answers.jsonl' --steps 3 --rank 4 "
                        "--seed 1 -v --out '{}' {}",
                        file_, STRATA_SOURCE_DIR, out, options));
    return read_file(out + "/adapter_model.safetensors", 1 << 28);
  }

  TempDir folder_;
  std::string file_ = folder_.file("tiny.gguf");
  std::string printed_;
};

TEST_P(NarrowCommands, TrainAndSampleAsOverBf16) {
  if (!forced_path_exists()) GTEST_SKIP() << "this CPU lacks the forced path";
  const std::string want = trained("bf16", "--weights bf16");
  EXPECT_NE(printed_.find("dequantised"), std::string::npos) << printed_;
  EXPECT_EQ(trained("narrow", "--weights narrow"), want);
  EXPECT_NE(printed_.find("in 4 to 8 bits"), std::string::npos) << printed_;
  EXPECT_EQ(trained("auto", "--weights auto --recompute full --threads 1"), want);
  EXPECT_EQ(trained("default", ""), want);
  EXPECT_NE(printed_.find("in 4 to 8 bits"), std::string::npos) << printed_;
  // So little that weights have to be in files; rows that are packed for tiles take some more.
  const bool has_tiles = run("version").find("by tiles") != std::string::npos;
  const std::string memory = has_tiles ? "15MiB" : "13MiB";
  EXPECT_EQ(trained("files", "--weights narrow --memory " + memory), want);
  EXPECT_NE(printed_.find("which each of"), std::string::npos) << printed_;
  const auto answer = [&](const char* weights) {
    const std::string printed =
        run(fmt::format("generate --model '{}' --adapter '{}' --prompt 'What is 3 plus 4?' "
                        "--temperature 0 --max-tokens 12 --weights {}",
                        file_, folder_.file("narrow"), weights));
    return printed.substr(0, printed.rfind("["));  // behind it is how fast that was
  };
  EXPECT_EQ(answer("narrow"), answer("bf16"));
  EXPECT_EQ(answer("auto"), answer("bf16"));
}

TEST_P(NarrowCommands, WhatIsNotKeptIsRefusedByName) {
  const auto to = [&](const char* out) {
    return fmt::format("--data '{}/examples/answers.jsonl' --steps 1 -v --out '{}'",
                       STRATA_SOURCE_DIR, folder_.file(out));
  };
  const std::string data = to("out");
  EXPECT_NE(run(fmt::format("train --model '{}' --method full --weights narrow {}", file_, data), 2)
                .find("--weights narrow and --method full"),
            std::string::npos);
  EXPECT_NE(run(fmt::format("train --model '{}' --dtype f32 --weights narrow {}", file_, data), 2)
                .find("with --dtype bf16 alone"),
            std::string::npos);
  EXPECT_NE(run(fmt::format("train --model '{}/models/tiny-qwen3' --weights narrow {}",
                            STRATA_SOURCE_DIR, data),
                2)
                .find("no matrix in 4 to 8 bits"),
            std::string::npos);
  // The default keeps what can be kept, and else dequantises.
  const auto inspected = run(fmt::format("inspect '{}'", file_));
  EXPECT_NE(inspected.find("in 4 to 8 bits"), std::string::npos) << inspected;
  const std::string full = run(fmt::format("train --model '{}' --method full {}", file_, data));
  EXPECT_NE(full.find("dequantised"), std::string::npos) << full;
  const std::string f32 = run(fmt::format("train --model '{}' --dtype f32 {}", file_, to("f32")));
  EXPECT_NE(f32.find("dequantised"), std::string::npos) << f32;
}

// Over other numbers than those of its base an adapter loads, with a warning.
TEST_P(NarrowCommands, AnAdapterRemembersTheNumbersOfItsBase) {
  trained("adapter", "");
  const std::string adapter = folder_.file("adapter");
  const std::string other = STRATA_SOURCE_DIR "/models/tiny-qwen3";
  const std::string warning = "it was trained over a base with matrices in ";
  const auto generate = [&](const std::string& model) {
    return run(fmt::format("generate --model '{}' --adapter '{}' --prompt 'What' --max-tokens 1",
                           model, adapter));
  };
  EXPECT_EQ(generate(file_).find(warning), std::string::npos);
  for (const std::string& printed :
       {generate(other),
        run(fmt::format("merge --model '{}' --adapter '{}' --out '{}'", other, adapter,
                        folder_.file("merged"))),
        run(fmt::format("train --model '{}' --adapter '{}' --data "
                        "'{}/examples/answers.jsonl' --steps 1 --out '{}'",
                        other, adapter, STRATA_SOURCE_DIR, folder_.file("more")))}) {
    EXPECT_NE(printed.find(warning), std::string::npos) << printed;
    EXPECT_NE(printed.find("has 29 BF16"), std::string::npos) << printed;
  }
  EXPECT_NE(run(fmt::format("inspect '{}'", adapter)).find("trained over"), std::string::npos);
  EXPECT_NE(read_file(adapter + "/README.md", 1 << 20).find("| base weights | matrices in "),
            std::string::npos);
}

// Bases in 16 and 32 bits are not told from one another.
TEST(NarrowCommand, AnAdapterOfBf16IsOneOfF32) {
  const TempDir folder;
  const auto run = [&](const std::string& arguments) {
    std::string printed;
    EXPECT_EQ(run_program(arguments, folder, &printed), 0) << arguments << "\n" << printed;
    return printed;
  };
  const std::string model = STRATA_SOURCE_DIR "/models/tiny-qwen3";
  const auto convert = [&](const char* how, const char* to) {
    run(fmt::format("convert --model '{}' {} --out '{}'", model, how, folder.file(to)));
  };
  convert("--type f32", "f32");
  convert("--to gguf --type q4_0", "tiny.gguf");
  run(
      fmt::format("train --model '{}' --data '{}/examples/answers.jsonl' --steps 1 --rank 4 "
                  "--out '{}'",
                  model, STRATA_SOURCE_DIR, folder.file("adapter")));
  const auto generate = [&](const char* base) {
    return run(fmt::format("generate --model '{}' --adapter '{}' --prompt 'What' --max-tokens 1",
                           folder.file(base), folder.file("adapter")));
  };
  EXPECT_EQ(generate("f32").find("trained over"), std::string::npos);
  EXPECT_NE(generate("tiny.gguf").find("trained over a base with matrices in 29 BF16"),
            std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Types, NarrowCommands, ::testing::Values("q4_0", "q8_0", "mxfp4", "nf4"));

}  // namespace
}  // namespace strata::golden
