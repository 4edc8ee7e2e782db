// SPDX-License-Identifier: Apache-2.0
// Any adapter directory merged into a small model with dense and routed layers: an Error, or
// weights that are the same however they are read. The input is adapter_config.json, a NUL, then
// adapter_model.safetensors.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "base/files.h"
#include "model/export/merged_source.h"
#include "model/weights/init.h"
#include "model/weights/no_layers.h"
#include "model/weights/save.h"
#include "ops/cpu/cpu_backend.h"
#include "tests/fuzz/fuzz_dir.h"

namespace {

using namespace strata;
using namespace strata::model;

constexpr const char* kConfig =
    R"({"architectures":["Qwen3MoeForCausalLM"],"model_type":"qwen3_moe","vocab_size":12,)"
    R"("hidden_size":8,"intermediate_size":6,"moe_intermediate_size":4,"num_hidden_layers":2,)"
    R"("num_attention_heads":2,"num_key_value_heads":1,"head_dim":4,"num_experts":2,)"
    R"("num_experts_per_tok":1,"norm_topk_prob":true,"mlp_only_layers":[0],)"
    R"("decoder_sparse_step":1,"max_position_embeddings":16,"rms_norm_eps":1e-06,)"
    R"("rope_theta":10000,"hidden_act":"silu","tie_word_embeddings":true,)"
    R"("attention_bias":false,"use_sliding_window":false,"torch_dtype":"float32"})";

struct Base {
  Base() {
    const ParsedConfig parsed = parse_config(kConfig, "config.json", false);
    const LoadedModel made = init_model(backend, parsed.config, DType::kF32, 1);
    save_model(backend, made, dir.path(), nullptr, DType::kF32);
    write_file_atomic(dir.path() + "/config.json", kConfig);
    model = load_model(backend, dir.path(), {.compute_dtype = DType::kF32, .part = kNoLayers});
  }
  fuzz::FuzzDir dir;
  CpuBackend backend{choose_cpu_path(), 1};
  LoadedModel model;
};

void check(const MergedSource& merged) {
  for (const CheckpointTensor& tensor : merged.tensors()) {
    const int64_t count = tensor.info.shape.num_elements();
    std::vector<float> whole(static_cast<size_t>(count)), parts(whole.size());
    merged.read_f32(tensor, 0, count, whole.data());
    const int64_t step = count / 3 + 1;
    for (int64_t first = 0; first < count; first += step) {
      merged.read_f32(tensor, first, std::min(step, count - first), parts.data() + first);
    }
    CHECK(std::memcmp(whole.data(), parts.data(), whole.size() * sizeof(float)) == 0,
          tensor.info.name);
  }
  CHECK(merged.layout().entries.size() == merged.tensors().size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Base base;
  static const fuzz::FuzzDir dir;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t split = std::min(input.find('\0'), size);
  dir.write("adapter_config.json", input.substr(0, split));
  dir.write("adapter_model.safetensors", input.substr(std::min(split + 1, size)));
  const AdapterPart parts[] = {{.dir = dir.path()}, {.dir = dir.path(), .weight = -0.5}};
  try {
    check(MergedSource(base.backend, base.model, parts));
  } catch (const Error&) {
  }
  return 0;
}
