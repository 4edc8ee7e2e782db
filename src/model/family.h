// Family: what differs between model families, as data: the architectures it serves, its config
// keys and its reader. Adding a family is one file in
// families/ and one line in family.cc.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "model/config.h"
#include "model/config_object.h"

namespace strata::model {

// A key that is accepted only with this value (compact JSON), or absent.
struct NeutralKey {
  std::string_view key;
  std::string_view value;
};

// The keys that every decoder's file has and that its blocks read.
struct DecoderKeys {
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t intermediate_size = 0;
  bool attention_bias = false;
  RopeConfig rope;
};

struct Family {
  std::string_view name;
  std::span<const std::string_view> architectures;
  // Beside those that every family has (family.cc).
  std::span<const std::string_view> read_keys;
  std::span<const std::string_view> inert_keys;
  std::span<const NeutralKey> neutral_keys = {};
  void (*read)(const ConfigObject& object, const DecoderKeys& keys, ModelConfig& config);
};

std::span<const Family* const> families();
// The family that serves the architecture, or nullptr.
const Family* find_family(std::string_view architecture);

// Whether files of the family may have the key with any value: it is read, or changes nothing.
bool takes_any_value(const Family& family, std::string_view key);
// The key's only accepted value, or nullptr.
const NeutralKey* find_neutral(const Family& family, std::string_view key);
// Tensors that a checkpoint may hold and that take no part in the forward, as suffixes of whole
// path components.
std::span<const std::string_view> ignored_suffixes();

// Shared by the families: the keys every decoder has, and RoPE in the form of transformers 4
// (rope_theta, rope_scaling) and of transformers 5 (rope_parameters); where both are there they
// must agree.
DecoderKeys read_common(const ConfigObject& object, ModelConfig& config);
RopeConfig read_rope(const ConfigObject& object);
// Throws Error(kUnsupported) where layer_types names anything but full attention.
void check_full_attention(const ConfigObject& object);
// A layer of two sublayers with a norm before each, as most decoders have it.
LayerConfig pre_norm_layer(const ModelConfig& config, const Block& attention, const Block& mlp);
// A size: at least 1 and below 2^31, or Error.
int64_t positive(const ConfigObject& object, std::string_view key,
                 std::optional<int64_t> fallback = {});

extern const Family kLlamaFamily;
extern const Family kQwen3Family;
extern const Family kDeepseekV3Family;
extern const Family kQwen3MoeFamily;

}  // namespace strata::model
