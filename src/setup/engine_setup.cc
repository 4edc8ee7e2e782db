// SPDX-License-Identifier: Apache-2.0
#include "setup/engine_setup.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "backend/file_memory.h"
#include "base/cores.h"
#include "base/env.h"
#include "base/error.h"
#include "base/log.h"
#include "engine/plan/recompute_plan.h"
#include "model/weights/load.h"
#include "model/weights/load_in_4bit.h"
#include "model/weights/narrow_forms.h"
#include "model/weights/tensor_names.h"
#include "setup/backend.h"
#include "setup/weights_text.h"

namespace strata::apps {
namespace {

// MaxText's name for a stage's input, which is always kept: a custom policy may name it alone.
constexpr std::string_view kIterationInputTag = "iteration_input";

std::vector<std::string> find_activation_tags(engine::Engine& engine) {
  std::vector<std::string> tags = {"lora_h", std::string(kIterationInputTag)};
  const engine::RecomputePlan plan = engine::plan_given_recompute(
      engine, {.pass_tokens = 64, .backward = true, .mtp = engine.config().use_mtp},
      model::Recompute::kNone);
  for (const engine::RecomputePlan::Row& row : plan.rows) {
    if (std::find(tags.begin(), tags.end(), row.tag) == tags.end()) tags.emplace_back(row.tag);
  }
  return tags;
}

// A tag that the model has no activation of would do nothing.
void check_recompute_tags(engine::Engine& engine, const std::vector<std::string>& tags) {
  if (tags.empty()) return;
  const std::vector<std::string> known = find_activation_tags(engine);
  for (const std::string& tag : tags) {
    if (std::find(known.begin(), known.end(), tag) != known.end()) continue;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--recompute: this model has no activation '{}'; it has {}", tag,
                            fmt::join(known, ", ")));
  }
}

// Where multi-token prediction is demanded, and the config alone is read: Error where it has none.
void set_demanded_mtp(const LoadSpec& spec, model::ModelConfig& config) {
  config.use_mtp = spec.mtp == model::UseMtp::kAlways;
  if (!config.use_mtp || config.mtp_layer) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: no layer of multi-token prediction, or none that is known: {}",
                          spec.where, model::kKnownMtp));
}

// How `weights` (null: there are none) would be held; the model gets a warning of those that cannot
// be so.
model::WeightForms decide_weight_forms(const CheckpointSource* weights, const Backend& backend,
                                       const LoadSpec& spec, std::optional<model::LayerRange> part,
                                       model::LoadedModel& model) {
  if (weights != nullptr) {
    model::KeptForms kept =
        model::choose_forms_to_keep(*weights, backend, model.config, spec.dtype, spec.weights,
                                    model::NarrowLook::kScales, part);
    if (!kept.faults.empty()) model.warnings.push_back(kept.warning());
    return std::move(kept.forms);
  }
  if (spec.load_in_4bit) return model::forms_in_4bit(backend, model.config, spec.where);
  if (model.config.has_mxfp4_experts && spec.weights != model::KeepWeights::kBf16 &&
      spec.dtype == DType::kBF16) {
    return model::forms_of_described_files(backend, model.config);
  }
  if (spec.weights != model::KeepWeights::kNarrow) return {};
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--weights narrow: {} has no weights next to it, which could be kept "
                          "in 4 to 8 bits",
                          spec.where));
}

void check_threads(int threads) {
  if (threads > usable_threads()) {
    log(LogLevel::kWarning,
        fmt::format(
            "--threads {}: this process may use {} cores at once; more threads wait for each "
            "other, and all is slower",
            threads, usable_threads()));
  }
  if (threads >= 0 && threads <= 4096) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--threads: got {}, want 0 (all cores) to 4096", threads));
}

}  // namespace

std::string offload_folder(const std::string& named) {
  return named.empty() ? env_temporary_folder() : named;
}

void check_offload_folder(const std::string& named) {
  const FileAllocator files(offload_folder(named));
}

void check_optimizer(const std::string& optimizer, const std::string& method) {
  if (optimizer != "muon" || method == "full") return;
  throw Error(ErrorCode::kInvalidArgument,
              "--optimizer muon: steps matrices of all parameters; give --method full with it");
}

void check_memory_options(const std::string& memory, const std::string& recompute,
                          const std::string& offload) {
  const bool offloads = parse_recompute(recompute).policy.offloads_any();
  // A folder that will not do is refused now, and not by the first pass.
  if (!offload.empty() || offloads) check_offload_folder(offload);
  if (!memory.empty() && recompute != "none") {
    throw Error(ErrorCode::kInvalidArgument,
                "--memory and --recompute: give one; --memory chooses what is kept");
  }
  if (!offload.empty() && memory.empty() && !offloads) {
    throw Error(ErrorCode::kInvalidArgument,
                "--offload: the folder of what --memory does not hold, or --recompute offloads; "
                "give one of them");
  }
}

std::string find_usable_offload_folder(const std::string& named) {
  if (!named.empty()) return FileAllocator(named).folder();
  const std::string temporary = env_temporary_folder();
  return FileAllocator::find_folder_fault(temporary).empty() ? temporary : "";
}

int64_t resolve_draft_tokens(const std::string& speculate, int64_t tokens) {
  if (speculate == "mtp") return tokens;
  if (tokens > 1) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("--draft-tokens: got {} without --speculate mtp, which makes drafts", tokens));
  }
  return 0;
}

bool resolve_use_mtp(const LoadSpec& spec) {
  if (spec.mtp == model::UseMtp::kNever) return false;
  return model::resolve_use_mtp(*open_checkpoint(spec.dir), spec.parsed.config, spec.mtp);
}

std::unique_ptr<engine::Engine> make_planning_engine(const LoadSpec& spec, int64_t draft_tokens,
                                                     std::optional<model::LayerRange> part,
                                                     int threads) {
  const engine::EngineOptions options = {
      .recompute = spec.recompute.policy, .draft_tokens = draft_tokens, .offload = spec.offload};
  model::ParsedConfig parsed = spec.parsed;
  // A plan wants a model's config alone, but looks at its weights where they are there.
  auto weights = find_weights(spec.dir);
  if (weights) model::verify_weight_tying(*weights, parsed);
  auto backend = make_backend(threads > 0 ? threads : spec.threads);
  model::LoadedModel model;
  model.dir = spec.dir;
  model.config = std::move(parsed.config);
  // What a config has, the checkpoint may lack: without one to look at, only what is demanded.
  set_demanded_mtp(spec, model.config);
  if (weights && spec.load_in_4bit)
    weights = model::quantise_in_4bit(std::move(weights), *backend, model.config);
  model::WeightForms forms = decide_weight_forms(weights.get(), *backend, spec, part, model);
  model.weights = std::make_unique<model::ModelWeights>(
      *backend, model.config, spec.dtype, nullptr, part, std::move(forms), spec.share,
      /*shared=*/nullptr, spec.tensor, spec.expert);
  model.weights->set_sharers(spec.weight_sharers);
  auto engine = std::make_unique<engine::Engine>(std::move(backend), std::move(model), options);
  if (!part) check_recompute_tags(*engine, spec.recompute.tags);
  return engine;
}

std::unique_ptr<engine::Engine> load_engine(std::unique_ptr<Backend> backend, const LoadSpec& spec,
                                            engine::EngineOptions options,
                                            std::optional<model::LayerRange> part, Warnings tell,
                                            WeightPlace place) {
  model::LoadedModel model =
      model::load_model(*backend, spec.dir, spec.parsed,
                        {.compute_dtype = spec.dtype,
                         .mtp = spec.mtp,
                         .offload = place.in_file ? offload_folder(spec.offload) : "",
                         .part = part,
                         .keep = spec.weights,
                         .load_in_4bit = spec.load_in_4bit,
                         .share = spec.share,
                         .tensor = spec.tensor,
                         .expert = spec.expert,
                         .shared = place.shared.get(),
                         .weight_sharers = spec.weight_sharers});
  if (place.shared) model.files = std::move(place.shared);
  for (const std::string& warning : model.warnings) {
    if (tell == Warnings::kTold) log(LogLevel::kWarning, warning);
  }
  if (!model.config.use_mtp) options.draft_tokens = 0;
  return std::make_unique<engine::Engine>(std::move(backend), std::move(model), options);
}

std::unique_ptr<engine::Engine> load_engine(const LoadSpec& spec, engine::EngineOptions options) {
  return load_engine(spec, std::move(options), spec.recompute);
}

std::unique_ptr<engine::Engine> load_engine(const LoadSpec& spec, engine::EngineOptions options,
                                            const engine::RecomputeChoice& recompute,
                                            WeightPlace place) {
  options.recompute = recompute.policy;
  options.threads = spec.threads;
  options.offload = spec.offload;
  check_threads(spec.threads);
  auto engine = load_engine(make_backend(spec.threads), spec, options, /*part=*/{}, Warnings::kTold,
                            std::move(place));
  check_recompute_tags(*engine, recompute.tags);
  return engine;
}

}  // namespace strata::apps
