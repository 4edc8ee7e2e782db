// SPDX-License-Identifier: Apache-2.0
// ModelConfig: what a family's config.json says, in one form for transformers 4 and 5 files. Plain
// values, const after load. Each family sorts the keys of its files into three sets: read, inert
// (they change nothing here), and refused unless at the value that changes nothing. Any other key
// is a warning, an Error with `strict`.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/model_texts.h"
#include "model/connectors/connector.h"
#include "model/families/renaming.h"
#include "model/families/rope_config.h"
#include "model/pass/streams.h"
#include "ops/log_softmax.h"
#include "tensor/dtype.h"

namespace strata::model {

// What "model." and "lm_head." are called in a checkpoint.
struct NameForm {
  std::string_view model = "model.";
  std::string_view head = "lm_head.";
};

// What model/per_layer_inputs.h makes: inputs that each layer has besides its state.
struct PerLayerInputs {
  int64_t width = 0;
  int64_t vocab_size = 0;  // of the layers' own embedding
};

// Keys and values that layers behind read too (model/pass/shared_values.h).
struct SharedKvSpec {
  int64_t layer = 0;
  int sublayer = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
};

struct ModelConfig {
  std::string family;        // "llama", "qwen3"
  std::string architecture;  // "LlamaForCausalLM"
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;           // of the final norm
  float norm_offset = 0.0f;             // its multiplier is this plus the weight
  double embedding_scale = 1.0;         // of the embedding's rows
  bool rounds_embedding_scale = false;  // to the compute type
  ops::LogitMap logit_map;              // behind the head
  double initializer_range = 0.02;
  bool tie_word_embeddings = false;
  std::vector<LayerConfig> layers;
  // The layer of multi-token prediction that checkpoints may hold (model/mtp.h). Behind the
  // decoder's in the table of layers where `use_mtp` is set; otherwise it takes no part.
  std::optional<LayerConfig> mtp_layer;
  bool use_mtp = false;
  // That layer reads what the final norm made, and in drafts of drafts what its own norm made; else
  // the last layer's state, and its own.
  bool mtp_reads_hidden = false;
  // What files call a tensor of it, from its name below the layer; null: "model.mtp.0." before it.
  std::string (*mtp_tensor_name)(const std::string& name) = nullptr;
  std::optional<Streams> streams;  // nothing: one stream, the residual itself
  std::optional<PerLayerInputs> per_layer_inputs;
  std::vector<SharedKvSpec> shared_kv;  // layers ascending
  std::vector<RopeSpec> ropes;          // blocks name theirs by its place here
  // Positions that a sequence of this run may have, where the run plans for fewer than the model
  // has (plan_positions() below, --context).
  int64_t most_positions = INT64_MAX;
  int64_t num_mtp_layers = 0;  // beyond the layers in a checkpoint; they take no part
  std::optional<DType> dtype;  // what the file says of its weights
  std::vector<int64_t> eos_token_ids;
  // How checkpoints may name tensors, the canonical form first; what adapters' modules are called;
  // and tensors of other modalities, which take no part but stay in files that are saved.
  std::vector<NameForm> name_forms = {NameForm()};
  std::string_view module_prefix = "model.";
  // What adapters call modules below a layer, from the blocks' own names.
  std::span<const Renaming> module_names;
  // The module of today for one as adapters of transformers 4 call it; others as they are. Null:
  // none was called otherwise.
  std::string (*module_of_older_name)(const std::string& path) = nullptr;
  // Other names of a tensor by its canonical one, tried in their order; a model without files is
  // saved under the first. Null: there are none.
  std::vector<std::string> (*names_in_files)(const std::string& name) = nullptr;
  // New files have what another spelling of a parameter names (ParamRow::others): a larger tensor.
  bool stores_as_one = false;
  std::vector<std::string> ignored_prefixes;
  bool packs_experts = false;      // files have experts as checkpoint/packed_experts.h says
  bool has_mxfp4_experts = false;  // its files have their matrices in MXFP4, as it says of them
  // Tensors without elements that files of the model have: modules of width zero. Nothing reads
  // them; they are written for readers that look for each of a module's tensors.
  struct EmptyTensor {
    std::string name;
    Shape shape;
  };
  std::vector<EmptyTensor> empty_tensors;

  // Positions that this run has for a sequence.
  [[nodiscard]] int64_t context() const {
    return std::min(max_position_embeddings, most_positions);
  }
  [[nodiscard]] int64_t num_layers() const { return static_cast<int64_t>(layers.size()); }
  // The width of the residual state between layers: all streams together.
  [[nodiscard]] int64_t state_width() const {
    return hidden_size * (streams ? streams->count() : 1);
  }
  // The config of the first block of this kind in a layer, or null.
  template <typename Config>
  [[nodiscard]] const Config* find_block_config(int64_t layer, const BlockOps& ops) const {
    for (const Sublayer& sublayer : layers[static_cast<size_t>(layer)]) {
      if (const auto* config = sublayer.block.template config_of<Config>(ops)) return config;
    }
    return nullptr;
  }
  // The place of a rotary table in `ropes`, added if it is new.
  int ensure_rope(const RopeSpec& rope);
};

// Chooses a run's tables of RoPE for sequences of up to `longest` positions (0: as short as they
// come). Of longrope it is the long factors where these are more than the original length, else the
// short ones, which hold no longer sequence. All that belongs to one run must have the same tables;
// a config that was just parsed has the short ones.
void plan_positions(ModelConfig& config, int64_t longest);

struct ParsedConfig {
  ModelConfig config;
  std::vector<std::string> warnings;  // one sentence each
};

// Parses the text of a config.json; `where` is its path. Throws Error on a fault, an unknown
// architecture (the message lists the known ones), an unsupported value, and with `strict` on an
// unknown key.
ParsedConfig parse_config(const std::string& text, const std::string& where, bool strict);
// The config.json among these texts; or of what is at the path.
ParsedConfig read_config(const ModelTexts& texts, bool strict);
ParsedConfig load_config(const std::string& path, bool strict);

}  // namespace strata::model
