// SPDX-License-Identifier: Apache-2.0
// Names and orders of tensors. Source: llama.cpp's convert_hf_to_gguf.py, gguf-py's
// tensor_mapping.py and llama.cpp's llama-model.cpp.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "checkpoint/gguf/architecture.h"
#include "checkpoint/gguf/names.h"
#include "checkpoint/gguf/nvfp4_scales.h"

namespace strata {
namespace {

std::string shape_text(const std::vector<int64_t>& dims) {
  return fmt::format("[{}]", fmt::join(dims, ", "));
}

struct LayerName {
  int64_t layer = 0;
  std::string_view rest;  // behind "blk.N."
};
std::optional<LayerName> parse_layer_name(std::string_view name) {
  constexpr std::string_view kPrefix = "blk.";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  LayerName out;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), out.layer);
  const auto digits = static_cast<size_t>(end - name.data());
  if (error != std::errc() || digits + 1 >= name.size() || name[digits] != '.') return std::nullopt;
  out.rest = name.substr(digits + 1);
  return out;
}

// The rows of heads that are stored in pairs (i, i + half of the head) as Hugging Face has them,
// half by half.
std::vector<int32_t> unpaired_order(int64_t rows, int64_t heads) {
  std::vector<int32_t> out(static_cast<size_t>(rows));
  const int64_t dim = rows / heads;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t within = row % dim;
    const int64_t pair = within % (dim / 2);
    out[static_cast<size_t>(row)] =
        static_cast<int32_t>(row - within + 2 * pair + within / (dim / 2));
  }
  return out;
}

// Value heads stand in the file group by group of key heads (tiled), at Hugging Face key head by
// key head. Behind `before` items that stay, runs of `run` items belong to a head.
struct ValueHeads {
  int64_t keys = 0, values = 0;
  [[nodiscard]] std::vector<int32_t> stored_order(int64_t before, int64_t run) const {
    std::vector<int32_t> out(static_cast<size_t>(before + values * run));
    std::iota(out.begin(), out.begin() + before, 0);
    const int64_t group = values / keys;
    for (int64_t head = 0; head < values; ++head) {
      const int64_t stored = head % group * keys + head / group;
      for (int64_t i = 0; i < run; ++i) {
        out[static_cast<size_t>(before + head * run + i)] =
            static_cast<int32_t>(before + stored * run + i);
      }
    }
    return out;
  }
};

// What a stacked tensor has of each expert.
struct ExpertPart {
  std::string_view stored, name;
  int64_t parts, part;  // of an expert's rows
};

class WeightList {
 public:
  explicit WeightList(const GgufModel& model)
      : model_(model),
        row_(gguf_architecture(model)),
        num_layers_(gguf_num_layers(model)),
        scales_(model) {}

  std::vector<GgufWeight> build_list() {
    for (const GgufModel::Tensor& tensor : model_.tensors()) add_weights_from(tensor);
    return std::move(weights_);
  }

 private:
  // A size, small enough that products of two can be counted.
  [[nodiscard]] int64_t read_size(std::string_view name,
                                  std::optional<int64_t> fallback = {}) const {
    constexpr int64_t kLargest = 1 << 24;
    const std::string whole = gguf_key(model_, name);
    const int64_t value = model_.keys().integer(whole, fallback);
    if (value < 1 || value > kLargest) {
      model_.keys().fail(whole, fmt::format("got {}, want 1 to {}", value, kLargest));
    }
    return value;
  }
  [[nodiscard]] int64_t heads() const { return read_size("attention.head_count"); }
  [[nodiscard]] int64_t kv_heads() const { return read_size("attention.head_count_kv", heads()); }

  [[noreturn]] void fail(const GgufModel::Tensor& from, const std::string& what) const {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: tensor '{}' {}: {}", model_.files()[from.file].path(),
                            from.info->name, shape_text(from.info->dims), what));
  }

  [[noreturn]] void fail_odd_heads(const GgufModel::Tensor& from, int64_t num_heads) const {
    fail(from, fmt::format("no {} heads of even width", num_heads));
  }

  void push(GgufWeight weight, int64_t expert = 0) {
    weight.scale = scales_.read_scale(weight.from, expert);
    weights_.push_back(std::move(weight));
  }

  void add_weights_from(const GgufModel::Tensor& from) {
    const std::string_view name = from.info->name;
    if (name == "rope_freqs.weight") return;  // read as part of the config
    if (scales_.is_scale(name)) return;
    if (const std::string_view known = huggingface_name_outside_layers(name); !known.empty()) {
      const bool is_norm = known == "model.norm.weight";
      return push({.name = std::string(known),
                   .dims = from.info->dims,
                   .from = from,
                   .change = is_norm && row_.norms_plus_one ? GgufWeight::Change::kMinusOne
                                                            : GgufWeight::Change::kNone});
    }
    const std::optional<LayerName> in_layer = parse_layer_name(name);
    if (!in_layer) return push({.name = std::string(name), .dims = from.info->dims, .from = from});
    const std::string blocks = gguf_key(model_, "block_count");
    if (in_layer->layer >= model_.keys().integer(blocks)) {
      fail(from, fmt::format("the file has {} layers by its key {}; is it of a larger model?",
                             model_.keys().integer(blocks), blocks));
    }
    if (in_layer->layer < num_layers_) {
      return add_in_layer(from, in_layer->layer, in_layer->rest);
    }
    // The layer of multi-token prediction takes part where there is one, and it is known.
    const bool is_one = model_.keys().integer(blocks) == num_layers_ + 1;
    if (row_.is_hybrid && is_one) add_in_layer(from, in_layer->layer, in_layer->rest);
  }

  [[nodiscard]] std::string name_in_layer(int64_t layer, std::string_view rest) const {
    if (layer >= num_layers_) return huggingface_name_in_mtp(row_, rest);
    const std::string name = huggingface_name_in_layer(row_, rest);
    return name.empty() ? name : prefix_of(layer) + name;
  }
  [[nodiscard]] std::string prefix_of(int64_t layer) const {
    return layer < num_layers_ ? fmt::format("model.layers.{}.", layer) : "mtp.layers.0.";
  }

  void add_in_layer(const GgufModel::Tensor& from, int64_t layer, std::string_view rest) {
    const std::string prefix = prefix_of(layer);
    const bool is_stack = rest.find("_exps.") != std::string_view::npos;
    if (is_stack && !rest.ends_with(".scale")) return add_experts(from, prefix, rest);
    if (!row_.is_hybrid && rest.starts_with("attn_qkv.")) return add_fused_qkv(from, prefix, rest);
    if (row_.has_mla && rest == "attn_v_b.weight") return;  // with its other half
    if (row_.has_mla && rest == "attn_k_b.weight") return add_kv_b(from, layer, prefix);
    const std::string whole = name_in_layer(layer, rest);
    if (whole.empty()) {
      return push({.name = from.info->name, .dims = from.info->dims, .from = from});
    }
    GgufWeight weight = {.name = whole, .dims = from.info->dims, .from = from};
    // Below the layer, of what stands in one.
    const std::string_view name =
        whole.starts_with(prefix) ? std::string_view(whole).substr(prefix.size()) : whole;
    if (row_.paired_heads && rest.starts_with("attn_q.")) unpair_head_rows(weight, heads());
    if (row_.paired_heads && rest.starts_with("attn_k.")) unpair_head_rows(weight, kv_heads());
    const bool is_norm = (name.ends_with("norm.weight") && name != "linear_attn.norm.weight") ||
                         name.starts_with("mtp.pre_fc_norm_");
    if (row_.norms_plus_one && is_norm) weight.change = GgufWeight::Change::kMinusOne;
    if (row_.is_hybrid) convert_delta_net_weight(weight, name);
    push(std::move(weight));
  }

  void unpair_head_rows(GgufWeight& weight, int64_t num_heads) const {
    const int64_t rows = weight.dims.front();
    if (rows > INT32_MAX || rows % num_heads != 0 || rows / num_heads % 2 != 0) {
      fail_odd_heads(weight.from, num_heads);
    }
    const bool is_vector = weight.from.info->dims.size() == 1;
    (is_vector ? weight.columns : weight.rows) = unpaired_order(rows, num_heads);
  }

  void convert_delta_net_weight(GgufWeight& weight, std::string_view name) const {
    constexpr std::string_view kPrefix = "linear_attn.";
    if (name == "mlp.shared_expert_gate.weight") {
      weight.dims = {1, weight.from.info->columns()};
      return;
    }
    if (!name.starts_with(kPrefix)) return;
    name.remove_prefix(kPrefix.size());
    const ValueHeads heads = {.keys = read_size("ssm.group_count"),
                              .values = read_size("ssm.time_step_rank")};
    const int64_t inner = read_size("ssm.inner_size");
    check_heads(weight, heads, inner);
    if (name == "A_log") weight.change = GgufWeight::Change::kLogOfNegative;
    if (name == "conv1d.weight" && weight.dims.size() == 2) {
      weight.dims = {weight.dims[0], 1, weight.dims[1]};
    }
    reorder_delta_net_heads(weight, name, heads, inner);
  }

  // Value heads of a weight of which `name` is the last part.
  void reorder_delta_net_heads(GgufWeight& weight, std::string_view name, const ValueHeads& heads,
                               int64_t inner) const {
    const int64_t width = inner / heads.values;
    if (name == "in_proj_qkv.weight" || name == "conv1d.weight") {
      reorder_value_heads(weight, heads, 2 * heads.keys * read_size("ssm.state_size"), width);
    } else if (name == "in_proj_z.weight") {
      reorder_value_heads(weight, heads, 0, width);
    } else if (name == "out_proj.weight") {
      check_count(weight, weight.from.info->columns(), inner);
      weight.columns = heads.stored_order(0, width);
    } else if (name != "norm.weight") {
      reorder_value_heads(weight, heads, 0, 1);
    }
  }

  void check_heads(const GgufWeight& weight, const ValueHeads& heads, int64_t inner) const {
    if (heads.values % heads.keys == 0 && inner % heads.values == 0) return;
    fail(weight.from, "the keys ssm.group_count, ssm.time_step_rank and ssm.inner_size do not fit");
  }

  void check_count(const GgufWeight& weight, int64_t have, int64_t wanted) const {
    if (have != wanted) fail(weight.from, fmt::format("the keys say {}, not {}", wanted, have));
  }

  // Orders what the weight is a list of: rows, or values of one row.
  void reorder_value_heads(GgufWeight& weight, const ValueHeads& heads, int64_t before,
                           int64_t run) const {
    const bool is_vector = weight.from.info->dims.size() == 1;
    const int64_t have = is_vector ? weight.from.info->columns() : weight.dims.front();
    check_count(weight, have, before + heads.values * run);
    (is_vector ? weight.columns : weight.rows) = heads.stored_order(before, run);
  }

  void check_fused_qkv_rows(const GgufModel::Tensor& from, int64_t total, int64_t dim) const {
    if (from.info->dims.front() != total || from.info->dims.size() > 2) {
      fail(from, fmt::format("the keys say {} rows", total));
    }
    if (row_.paired_heads && (total > INT32_MAX || dim % 2 != 0)) fail_odd_heads(from, heads());
  }

  // Rows of q, then of k, then of v.
  void add_fused_qkv(const GgufModel::Tensor& from, const std::string& prefix,
                     std::string_view rest) {
    const std::string_view ending = rest.substr(rest.rfind('.'));
    const int64_t dim = read_size("attention.key_length", read_size("embedding_length") / heads());
    const std::pair<std::string_view, int64_t> parts[] = {
        {"q", heads()}, {"k", kv_heads()}, {"v", kv_heads()}};
    check_fused_qkv_rows(from, (heads() + 2 * kv_heads()) * dim, dim);
    int64_t first = 0;
    for (const auto& [name, count] : parts) {
      GgufWeight weight = {.name = fmt::format("{}self_attn.{}_proj{}", prefix, name, ending),
                           .dims = from.info->dims,
                           .from = from};
      weight.dims.front() = count * dim;
      select_slice(weight, first, count, row_.paired_heads && name != "v");
      push(std::move(weight));
      first += count * dim;
    }
  }

  // The weight's rows (values, of one row) are those of the tensor from `first` on.
  static void select_slice(GgufWeight& weight, int64_t first, int64_t heads, bool paired) {
    const int64_t rows = weight.dims.front();
    if (weight.from.info->dims.size() > 1) {
      weight.first_row = first;
      if (paired) weight.rows = unpaired_order(rows, heads);
      return;
    }
    weight.columns.resize(static_cast<size_t>(rows));
    std::iota(weight.columns.begin(), weight.columns.end(), 0);
    if (paired) weight.columns = unpaired_order(rows, heads);
    for (int32_t& column : weight.columns) column += static_cast<int32_t>(first);
  }

  // A stack becomes its experts.
  void add_experts(const GgufModel::Tensor& from, const std::string& prefix,
                   std::string_view rest) {
    constexpr ExpertPart kParts[] = {{"ffn_gate_exps.weight", "gate_proj", 1, 0},
                                     {"ffn_up_exps.weight", "up_proj", 1, 0},
                                     {"ffn_down_exps.weight", "down_proj", 1, 0},
                                     {"ffn_gate_up_exps.weight", "gate_proj", 2, 0},
                                     {"ffn_gate_up_exps.weight", "up_proj", 2, 1}};
    constexpr std::string_view kBiases[] = {"gate", "up", "down"};
    for (const std::string_view name : kBiases) {
      if (rest == fmt::format("ffn_{}_exps.bias", name)) return add_biases(from, prefix, name);
    }
    bool known = false;
    for (const ExpertPart& part : kParts) {
      if (part.stored != rest) continue;
      known = true;
      add_part_of_experts(from, prefix, part);
    }
    if (!known) push({.name = from.info->name, .dims = from.info->dims, .from = from});
  }

  // The same of vectors, a row each.
  void add_biases(const GgufModel::Tensor& from, const std::string& prefix,
                  std::string_view projection) {
    const std::vector<int64_t>& dims = from.info->dims;
    check_num_experts(from);
    if (dims.size() != 2) fail(from, "no stack of experts' biases");
    for (int64_t expert = 0; expert < dims[0]; ++expert) {
      push({.name = fmt::format("{}{}{}.{}_proj.bias", prefix, row_.experts, expert, projection),
            .dims = {dims[1]},
            .from = from,
            .first_row = expert});
    }
  }

  void check_num_experts(const GgufModel::Tensor& from) const {
    constexpr int64_t kMostWeights = 1 << 18;  // no model comes near; a name takes memory
    if (from.info->dims.front() > kMostWeights - std::ssize(weights_))
      fail(from, fmt::format("with its experts there are more than {} tensors", kMostWeights));
  }

  void add_part_of_experts(const GgufModel::Tensor& from, const std::string& prefix,
                           const ExpertPart& part) {
    const std::vector<int64_t>& dims = from.info->dims;
    check_num_experts(from);
    if (dims.size() != 3 || dims[1] % part.parts != 0) fail(from, "no stack of experts");
    const int64_t rows = dims[1] / part.parts;
    for (int64_t expert = 0; expert < dims[0]; ++expert) {
      push({.name = fmt::format("{}{}{}.{}.weight", prefix, row_.experts, expert, part.name),
            .dims = {rows, dims[2]},
            .from = from,
            .first_row = expert * dims[1] + part.part * rows},
           expert);
    }
  }

  [[nodiscard]] GgufModel::Tensor require_tensor(const std::string& name,
                                                 const GgufModel::Tensor& from) const {
    for (const GgufModel::Tensor& tensor : model_.tensors()) {
      if (tensor.info->name == name) return tensor;
    }
    fail(from, fmt::format("'{}' is missing", name));
  }

  void add_kv_b(const GgufModel::Tensor& from, int64_t layer, const std::string& prefix) {
    GgufWeight weight = {.name = prefix + "self_attn.kv_b_proj.weight", .dims = {}, .from = from};
    weight.values = require_tensor(fmt::format("blk.{}.attn_v_b.weight", layer), from);
    const std::vector<int64_t>& k = from.info->dims;
    const std::vector<int64_t>& v = weight.values.info->dims;
    if (k.size() != 3 || v.size() != 3 || k[0] != v[0] || k[1] != v[2]) {
      fail(from, "does not fit attn_v_b: want [heads, rank, nope] and [heads, value, rank]");
    }
    if (scales_.has_scale(from) || scales_.has_scale(weight.values)) {
      fail(from, "halves of kv_b_proj with scales of NVFP4 are not supported");
    }
    weight.dims = {k[0] * (k[2] + v[1]), k[1]};
    push(std::move(weight));
  }

  const GgufModel& model_;
  const GgufArchitecture& row_;
  int64_t num_layers_;
  Nvfp4Scales scales_;
  std::vector<GgufWeight> weights_;
};

}  // namespace

std::vector<GgufWeight> gguf_weights(const GgufModel& model) {
  return WeightList(model).build_list();
}

}  // namespace strata
