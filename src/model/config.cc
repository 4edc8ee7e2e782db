#include "model/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "model/config_object.h"
#include "model/family.h"

namespace strata::model {
namespace {

const Family& family_of(const ConfigObject& object, std::string& architecture) {
  std::vector<std::string_view> known;
  for (const Family* family : families()) {
    known.insert(known.end(), family->architectures.begin(), family->architectures.end());
  }
  for (const std::string& name : object.texts("architectures")) {
    if (const Family* family = find_family(name)) {
      architecture = name;
      return *family;
    }
  }
  throw Error(ErrorCode::kUnsupported,
              fmt::format("{}: architectures: got {}, known are {}", object.where(),
                          object.json("architectures"), fmt::join(known, ", ")));
}

// Sorts every key of the file into read, inert, neutral or unknown.
void check_keys(const ConfigObject& object, const Family& family, bool strict,
                std::vector<std::string>& warnings) {
  for (const std::string& key : object.keys()) {
    if (takes_any_value(family, key)) continue;
    const NeutralKey* const neutral = find_neutral(family, key);
    if (neutral == nullptr) {
      std::string message = fmt::format("{}: key '{}' is not known to family {} and is not used",
                                        object.where(), key, family.name);
      if (strict) throw Error(ErrorCode::kInvalidArgument, message);
      warnings.push_back(std::move(message));
    } else if (object.json(key) != neutral->value) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("{}: key '{}': got {}, only {} is supported", object.where(), key,
                              object.json(key), neutral->value));
    }
  }
}

void check_experts(const ConfigObject& object, const MoeConfig& moe) {
  constexpr int64_t kMostExperts = 65536;
  constexpr int64_t kLargestWidth = int64_t{1} << 31;
  const auto want = [&](bool fine, std::string_view name, int64_t got, std::string_view wanted) {
    if (fine) return;
    object.fail(fmt::format("{}: got {}, want {}", name, got, wanted));
  };
  const int64_t experts = moe.num_experts;
  want(experts >= 1 && experts <= kMostExperts, "the number of experts", experts, "1 to 65536");
  want(moe.expert_width >= 1 && moe.expert_width < kLargestWidth, "moe_intermediate_size",
       moe.expert_width, "at least 1 and below 2^31");
  want(moe.shared_width >= 0 && moe.shared_width < kLargestWidth, "the shared experts' width",
       moe.shared_width, "at least 0 and below 2^31");
  want(moe.top_k >= 1 && moe.top_k <= experts, "num_experts_per_tok", moe.top_k,
       "1 to the number of experts");
  want(moe.num_groups >= 1 && experts % moe.num_groups == 0, "n_group", moe.num_groups,
       "a divisor of the number of experts");
  want(moe.top_groups >= 1 && moe.top_groups <= moe.num_groups, "topk_group", moe.top_groups,
       "1 to n_group");
  want(moe.top_k <= moe.top_groups * (experts / moe.num_groups), "num_experts_per_tok", moe.top_k,
       "at most the experts of topk_group groups");
}

void check_shapes(const ConfigObject& object, const ModelConfig& config) {
  if (config.num_kv_heads < 1) object.fail("num_key_value_heads must be at least 1");
  if (config.num_heads % config.num_kv_heads != 0) {
    object.fail(fmt::format("num_attention_heads {} is not a multiple of num_key_value_heads {}",
                            config.num_heads, config.num_kv_heads));
  }
  const int64_t rope_dim = config.rope_dim();
  if (rope_dim < 2 || rope_dim % 2 != 0 || rope_dim > 1024) {
    object.fail(fmt::format(
        "{} {} must be even, from 2 to 1024{}",
        config.mla.kv_lora_rank > 0 ? "qk_rope_head_dim" : "head_dim", rope_dim,
        config.mla.kv_lora_rank > 0 ? "" : " (hidden_size / num_attention_heads unless given)"));
  }
  if (!(config.rms_norm_eps >= 0.0)) object.fail("rms_norm_eps must be >= 0");
  const auto is_sparse = [](const LayerKind& kind) { return kind.mlp == MlpKind::kMoe; };
  const auto sparse =
      std::count_if(config.layer_kinds.begin(), config.layer_kinds.end(), is_sparse);
  if (sparse > 0) check_experts(object, config.moe);
  // Sizes are below 2^31 each; their products must stay countable, whatever the file claims.
  constexpr double kMostParameters = 1e13;
  const auto d = static_cast<double>(config.hidden_size);
  double attention = 2.0 * d * static_cast<double>(config.q_width() + config.kv_width());
  if (config.mla.kv_lora_rank > 0) {
    const auto latent = static_cast<double>(config.mla.kv_lora_rank);
    attention +=
        static_cast<double>(config.num_heads * config.mla.head_rows()) * (d + latent) +
        static_cast<double>(config.mla.q_lora_rank) * (d + static_cast<double>(config.q_width()));
  }
  const double mlp = 3.0 * d * static_cast<double>(config.intermediate_size);
  const double experts =
      3.0 * d *
      (static_cast<double>(config.moe.num_experts) * static_cast<double>(config.moe.expert_width) +
       static_cast<double>(config.moe.shared_width));
  const double parameters = 2.0 * d * static_cast<double>(config.vocab_size) +
                            static_cast<double>(config.num_layers) * (attention + mlp) +
                            static_cast<double>(sparse) * experts;
  if (parameters > kMostParameters) {
    object.fail(fmt::format("the sizes ask for {:.3g} parameters, at most {:.0g} are supported",
                            parameters, kMostParameters));
  }
}

}  // namespace

float ModelConfig::attention_scale() const {
  const double plain = 1.0 / std::sqrt(static_cast<double>(head_dim));
  // HF modeling_deepseek_v3.py, yarn_apply_mscale.
  if (mla.kv_lora_rank == 0 || rope.type == RopeType::kDefault || rope.mscale_all_dim == 0.0) {
    return static_cast<float>(plain);
  }
  const double m =
      rope.factor <= 1.0 ? 1.0 : 0.1 * rope.mscale_all_dim * std::log(rope.factor) + 1.0;
  return static_cast<float>(plain * m * m);
}

ParsedConfig parse_config(const std::string& text, const std::string& where, bool strict) {
  const ConfigObject object = ConfigObject::parse(text, where);
  ParsedConfig parsed;
  const Family& family = family_of(object, parsed.config.architecture);
  parsed.config.family = family.name;
  check_keys(object, family, strict, parsed.warnings);
  read_common(object, parsed.config);
  family.read(object, parsed.config);
  check_shapes(object, parsed.config);
  return parsed;
}

}  // namespace strata::model
