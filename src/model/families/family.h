// SPDX-License-Identifier: Apache-2.0
// Family: what differs between model families, as data: the architectures it serves, its config
// keys and its reader. Adding a family is one file in
// families/ and one line in family.cc.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "model/blocks/gqa.h"
#include "model/config.h"
#include "model/families/config_object.h"

namespace strata::model {

// A key that is accepted only with this value (compact JSON), or absent. Each value of a key that
// may have several is a row of its own.
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
};

// Values of keys that a family's files may leave out; 0: they must be there.
struct DecoderDefaults {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;
  bool tie_word_embeddings = false;
};

// A checkpoint of several modalities that holds the family's model as its text part: its config is
// `text_config`, its tensors have longer names, and the rest takes no part.
struct TextPart {
  std::span<const std::string_view> architectures;
  std::span<const std::string_view> inert_keys;        // besides text_config
  std::span<const NameForm> name_forms;                // the first that a checkpoint has is its
  std::string_view module_prefix;                      // of adapters' modules below the model
  std::span<const std::string_view> ignored_prefixes;  // of tensors
  std::string_view model_type;                         // of the text part by itself
};

struct Family {
  std::string_view name;
  std::span<const std::string_view> architectures;
  std::span<const std::string_view> model_types;  // of these architectures
  // Besides those that every family has (family.cc).
  std::span<const std::string_view> read_keys;
  std::span<const std::string_view> inert_keys;
  std::span<const NeutralKey> neutral_keys = {};
  DecoderDefaults defaults = {};
  const TextPart* text_part = nullptr;  // or none
  // Sentences on values that do not count for what they seem to say; null: there are none.
  std::vector<std::string> (*find_warnings)(const ConfigObject& object) = nullptr;
  void (*read)(const ConfigObject& object, const DecoderKeys& keys, ModelConfig& config);
};

std::span<const Family* const> families();
// The family that serves the architecture, or nullptr. Multimodal checkpoints of one architecture
// may have text parts of several families: theirs is that of `text_type`, the text_config's
// model_type, else the first one.
const Family* find_family(std::string_view architecture, std::string_view text_type = {});

// Whether files of the family may have the key with any value: it is read, or changes nothing.
bool takes_any_value(const Family& family, std::string_view key);
// The only values that the key may have, the family's own rows before those of every family; empty:
// it is no such key.
std::vector<std::string_view> neutral_values(const Family& family, std::string_view key);
// Tensors that a checkpoint may hold and that take no part in the forward, as suffixes of whole
// path components.
std::span<const std::string_view> ignored_suffixes();

// Whether the architecture is that of the family's text part.
bool is_text_part(const Family& family, std::string_view architecture);

// The model_type of a file's text_config; empty where it has neither.
std::string text_type_of(const ConfigObject& whole);
// The object that describes the text part of a multimodal model, completed by keys of the whole.
ConfigObject require_text_config(const ConfigObject& whole);
// The text of a config.json of the text model by itself; of any other model `text` as it is.
std::string extract_text_model_config(const std::string& text, const std::string& where);

// Shared by the families: the keys every decoder has, and RoPE in the form of transformers 4
// (rope_theta, rope_scaling) and of transformers 5 (rope_parameters); where both are there they
// must agree.
DecoderKeys read_decoder_keys(const ConfigObject& object, const DecoderDefaults& defaults,
                              ModelConfig& config);
struct RopeDefaults {
  double theta = 10000.0;
  double partial_rotary_factor = 1.0;
  bool is_partial = false;        // files may rotate a part of each head
  bool scales_positions = false;  // llama_4_scaling_beta and max_position_embeddings may be there
  bool has_sections = false;      // mrope_section and mrope_interleaved may be there: text has none
  bool has_proportional = false;  // rope_type proportional may be there
  bool has_longrope = false;      // which is the only scaling then; older files call it su or yarn
  // original_max_position_embeddings next to the scaling, which goes before the one inside.
  std::optional<double> original_length = {};
  // What counts as yarn's `truncate`, whatever the settings say: transformers reads it elsewhere
  // where settings are by kind of layer.
  std::optional<bool> truncate = {};
};
RopeConfig read_rope(const ConfigObject& object, const RopeDefaults& defaults = {});
double read_partial_rotary(const ConfigObject& object, const RopeDefaults& defaults);
// The scaling part alone: rope_scaling, or one of rope_parameters. Where it leaves out
// original_max_position_embeddings, it is max_position_embeddings.
RopeConfig read_rope_scaling(const ConfigObject& object, const ConfigObject& scaling,
                             const RopeDefaults& defaults);
// num_key_value_heads where an explicit null says that they are as many as num_attention_heads, and
// an absent key that they are the default.
int64_t read_kv_heads(const ConfigObject& object, const DecoderKeys& keys, int64_t fallback);
// sliding_window as Qwen's files have it: 0 where use_sliding_window is off or the window null,
// `otherwise` where the key is absent.
int64_t read_enabled_window(const ConfigObject& object, int64_t otherwise = 4096);
// sliding_window as files have it that switch it on by naming it: 0 where it is absent or null.
int64_t read_named_window(const ConfigObject& object);
// The columns of a head that a partial rotation turns.
int64_t rotary_width(const RopeConfig& rope, int64_t head_dim);
// Which of two names of one whole number the file has, the first where it has neither; where both
// are there they must agree.
std::string_view choose_present_key(const ConfigObject& object, std::string_view name,
                                    std::string_view other);
// Which layers are of the type, the others being full_attention: by layer_types, else by
// `otherwise`. An Error where it names anything else, or too few or too many layers.
std::vector<bool> read_layers_of_type(const ConfigObject& object, std::string_view type,
                                      int64_t num_layers,
                                      FunctionRef<bool(int64_t layer)> otherwise);
// Which layers have experts as Qwen's files say it: every decoder_sparse_step-th, but for those of
// mlp_only_layers.
std::vector<bool> read_sparse_layers(const ConfigObject& object, const DecoderKeys& keys,
                                     int64_t num_experts);
// Which layers have the window as Qwen's dense models say it: without layer_types, if there is one
// (not 0), those from max_window_layers on.
std::vector<bool> read_windowed_layers(const ConfigObject& object, int64_t num_layers,
                                       int64_t window);
// A layer of two sublayers with a norm before each, as most decoders have it.
LayerConfig make_pre_norm_layer(const ModelConfig& config, const Block& attention,
                                const Block& mlp);
// Appends such layers of grouped-query attention, with the window where `sliding` says; an Error
// where it does and there is none (0).
void add_windowed_layers(const ConfigObject& object, const std::vector<bool>& sliding,
                         int64_t window, GqaConfig attention, const Block& mlp,
                         ModelConfig& config);
// Throws Error for two keys that ought to say the same thing, and do not.
[[noreturn]] void fail_disagreement(const ConfigObject& object, std::string_view key,
                                    std::string_view other);
// A number above 0, or Error.
double read_positive_number(const ConfigObject& object, std::string_view key, double fallback);
// A size: at least 1 and below 2^31, or Error.
int64_t read_size(const ConfigObject& object, std::string_view key,
                  std::optional<int64_t> fallback = {});

}  // namespace strata::model
