// SPDX-License-Identifier: Apache-2.0
// Models are taken out within a memory that holds neither their largest tensor nor their adapter:
// the program runs under a limit of what it may have of its own (RLIMIT_DATA, which counts memory
// that is no file's), which a small model shows to be enough for the program itself.
#include "checkpoint/peft.h"
#include "tests/golden/export_run.h"

// Clang builds the sanitizers here, whose own memory counts.
#ifndef __clang__
namespace strata::golden {
namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kRank = 64;

struct Sizes {
  int64_t hidden = 1024, inner = 512, layers = 6, experts = 8, vocab = 16384;
};

// With experts qwen3_moe, else a llama, whose q and k a GGUF file has in another order of rows.
std::string make_model(const Sizes& s, const TempDir& folder, const char* name) {
  const bool routed = s.experts > 0;
  boost::json::object config = {
      {"architectures", {routed ? "Qwen3MoeForCausalLM" : "LlamaForCausalLM"}},
      {"model_type", routed ? "qwen3_moe" : "llama"},
      {"vocab_size", s.vocab},
      {"hidden_size", s.hidden},
      {"intermediate_size", 4 * s.inner},
      {"num_hidden_layers", s.layers},
      {"num_attention_heads", s.hidden / 64},
      {"num_key_value_heads", s.hidden / 64},
      {"head_dim", 64},
      {"max_position_embeddings", 128},
      {"rms_norm_eps", 1e-6},
      {"rope_theta", 10000.0},
      {"hidden_act", "silu"},
      {"attention_bias", false},
      {"tie_word_embeddings", true},
      {"torch_dtype", "bfloat16"}};
  if (routed) {
    config["num_experts"] = s.experts;
    config["num_experts_per_tok"] = 2;
    config["moe_intermediate_size"] = s.inner;
    config["norm_topk_prob"] = true;
    config["mlp_only_layers"] = boost::json::array();
    config["decoder_sparse_step"] = 1;
  }
  const std::string path = folder.file(std::string(name) + ".json");
  std::ofstream(path) << boost::json::serialize(config);
  std::string printed;
  EXPECT_EQ(run_program(fmt::format("init --config '{}' --dtype bf16 --seed 1 --out '{}'", path,
                                    folder.file(name)),
                        folder, &printed),
            0)
      << printed;
  return folder.file(name);
}

// Of every expert, and of the embedding. Returns its bytes.
int64_t make_adapter(const Sizes& s, const std::string& dir) {
  const std::vector<float> values(
      static_cast<size_t>(kRank * std::max({s.hidden, s.inner, s.vocab})), 1e-3f);
  int64_t bytes = 0;
  const auto view = [&](int64_t rows, int64_t columns) {
    bytes += rows * columns * 4;
    return TensorView(const_cast<float*>(values.data()), DType::kF32, {rows, columns});
  };
  std::vector<PeftWriteModule> modules;
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    for (int64_t e = 0; e < s.experts; ++e) {
      for (const char* name : {"gate_proj", "up_proj", "down_proj"}) {
        const bool down = std::string_view(name) == "down_proj";
        modules.push_back(
            {.module_path = fmt::format("model.layers.{}.mlp.experts.{}.{}", layer, e, name),
             .alpha = 1,
             .a = view(kRank, down ? s.inner : s.hidden),
             .b = view(down ? s.hidden : s.inner, kRank)});
      }
    }
  }
  modules.push_back({.module_path = "model.embed_tokens",
                     .embedding = true,
                     .alpha = 1,
                     .a = view(kRank, s.vocab),
                     .b = view(s.hidden, kRank)});
  write_peft(dir, {}, modules);
  return bytes;
}

// Whether the program does it in so much.
bool fits(const std::string& arguments, int64_t bytes, const TempDir& folder) {
  const std::string out = folder.file("out");
  std::filesystem::remove_all(out);
  const int status = std::system(
      fmt::format("ulimit -d {}; '{}' {} --threads 1 --out '{}' > '{}' 2>&1", bytes / 1024,
                  STRATA_BINARY, arguments, out, folder.file("printed.txt"))
          .c_str());
  return WEXITSTATUS(status) == 0;
}

// What the program needs for the same with a small model.
int64_t least_of(const std::string& arguments, const TempDir& folder) {
  int64_t too_little = 1, enough = 512;
  EXPECT_TRUE(fits(arguments, enough * kMiB, folder))
      << read_file(folder.file("printed.txt"), 1 << 20);
  while (enough - too_little > 1) {
    const int64_t middle = (enough + too_little) / 2;
    (fits(arguments, middle * kMiB, folder) ? enough : too_little) = middle;
  }
  return enough * kMiB;
}

TEST(ExportMemory, IsASliceAndALayerOfTheAdapter) {
  constexpr int64_t kMore = 40 * kMiB;
  const TempDir folder;
  const Sizes large, small = {.hidden = 64, .inner = 16, .layers = 1, .experts = 2, .vocab = 64};
  const std::string model = make_model(large, folder, "large");
  const std::string other = make_model(small, folder, "small");
  const int64_t adapter = make_adapter(large, folder.file("a"));
  make_adapter(small, folder.file("b"));
  ASSERT_GT(adapter, kMore + 16 * kMiB);
  ASSERT_GT(large.vocab * large.hidden * 4, kMore + 16 * kMiB);
  const auto merge = [&](const std::string& of, const char* with) {
    return fmt::format("merge --model '{}' --adapter '{}'", of, folder.file(with));
  };
  const int64_t least = least_of(merge(other, "b"), folder);
  EXPECT_TRUE(fits(merge(model, "a"), least + kMore, folder))
      << least << " " << read_file(folder.file("printed.txt"), 1 << 20);
}

TEST(ExportMemory, IsASliceWhereRowsAreInAnotherOrder) {
  constexpr int64_t kMore = 40 * kMiB;
  const TempDir folder;
  const Sizes large = {.hidden = 4096, .inner = 64, .layers = 1, .experts = 0, .vocab = 64};
  const Sizes small = {.hidden = 64, .inner = 16, .layers = 1, .experts = 0, .vocab = 64};
  const std::string model = make_model(large, folder, "large");
  const std::string other = make_model(small, folder, "small");
  ASSERT_GE(large.hidden * large.hidden * 4, kMore + 16 * kMiB);
  for (const char* more : {"--to gguf --type q8_0", "--to gguf --type f32", "--type f32",
                           "--type nf4", "--layout stacked"}) {
    SCOPED_TRACE(more);
    const auto convert = [&](const std::string& of) {
      return fmt::format("convert --model '{}' {}", of, more);
    };
    const int64_t least = least_of(convert(other), folder);
    EXPECT_TRUE(fits(convert(model), least + kMore, folder))
        << least << " " << read_file(folder.file("printed.txt"), 1 << 20);
  }
}

}  // namespace
}  // namespace strata::golden
#endif
