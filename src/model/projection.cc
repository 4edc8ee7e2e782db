#include "model/projection.h"

#include "base/check.h"

namespace strata::model {
namespace {

struct ProjectionRow {
  Projection projection;
  std::string_view path;
  LayerParam weight;
  LayerParam bias;
};

// In the order of the enum.
constexpr ProjectionRow kRows[] = {
    {Projection::kQ, "self_attn.q_proj", LayerParam::kQProj, LayerParam::kQBias},
    {Projection::kK, "self_attn.k_proj", LayerParam::kKProj, LayerParam::kKBias},
    {Projection::kV, "self_attn.v_proj", LayerParam::kVProj, LayerParam::kVBias},
    {Projection::kO, "self_attn.o_proj", LayerParam::kOProj, LayerParam::kOBias},
    {Projection::kGate, "mlp.gate_proj", LayerParam::kGateProj, LayerParam::kGateBias},
    {Projection::kUp, "mlp.up_proj", LayerParam::kUpProj, LayerParam::kUpBias},
    {Projection::kDown, "mlp.down_proj", LayerParam::kDownProj, LayerParam::kDownBias},
    {Projection::kSharedGate, "mlp.shared_experts.gate_proj", LayerParam::kSharedGate, kNoParam},
    {Projection::kSharedUp, "mlp.shared_experts.up_proj", LayerParam::kSharedUp, kNoParam},
    {Projection::kSharedDown, "mlp.shared_experts.down_proj", LayerParam::kSharedDown, kNoParam},
    {Projection::kQA, "self_attn.q_a_proj", LayerParam::kQAProj, LayerParam::kQABias},
    {Projection::kQB, "self_attn.q_b_proj", LayerParam::kQBProj, kNoParam},
    {Projection::kKvA, "self_attn.kv_a_proj_with_mqa", LayerParam::kKvAProj, LayerParam::kKvABias},
    {Projection::kKvB, "self_attn.kv_b_proj", LayerParam::kKvBProj, kNoParam},
    {Projection::kExpertGate, "mlp.experts.gate_proj", LayerParam::kExpertGate, kNoParam},
    {Projection::kExpertUp, "mlp.experts.up_proj", LayerParam::kExpertUp, kNoParam},
    {Projection::kExpertDown, "mlp.experts.down_proj", LayerParam::kExpertDown, kNoParam},
    {Projection::kExpertGateUp, "mlp.experts.gate_up_proj", kNoParam, kNoParam},
};

constexpr bool rows_are_in_order() {
  for (size_t i = 0; i < std::size(kRows); ++i) {
    if (kRows[i].projection != static_cast<Projection>(i)) return false;
  }
  return std::size(kRows) == static_cast<size_t>(kNumProjections);
}
static_assert(rows_are_in_order());

const ProjectionRow& row_of(Projection projection) {
  return kRows[static_cast<size_t>(projection)];
}

}  // namespace

LayerParam weight_of(Projection projection) { return row_of(projection).weight; }
LayerParam bias_of(Projection projection) { return row_of(projection).bias; }

std::string_view module_kind_path(int kind) {
  CHECK(kind >= 0 && kind < kNumModuleKinds, kind);
  if (kind == kEmbedding) return "embed_tokens";
  if (kind == kHead) return "lm_head";
  return row_of(static_cast<Projection>(kind)).path;
}

std::string_view module_kind_name(int kind) {
  const std::string_view path = module_kind_path(kind);
  return path.substr(path.rfind('.') + 1);
}

std::array<int64_t, 2> projection_widths(const ModelConfig& config, LayerKind kind,
                                         Projection projection) {
  if (projection == Projection::kExpertGateUp) {
    const auto [in, out] = projection_widths(config, kind, Projection::kExpertGate);
    return {in, 2 * out};
  }
  for (const LayerParamSpec& spec : layer_params(config, kind)) {
    if (spec.role == weight_of(projection)) return {spec.shape[1], spec.shape[0]};
  }
  return {0, 0};
}

RowBlocks projection_blocks(const ModelConfig& config, Projection projection) {
  if (projection != Projection::kKvB) return {};
  return {config.mla.nope_dim, config.mla.value_dim};
}

}  // namespace strata::model
