// SPDX-License-Identifier: Apache-2.0
#include "trainer/option_checks.h"

#include <fmt/format.h>

#include <string>

#include "base/error.h"
#include "data/lr_schedule.h"
#include "setup/shared_options.h"

namespace strata::apps {
namespace {

// Refuses what describes a fresh adapter next to --adapter.
void check_adapter_options(const TrainOptions& o) {
  const TrainOptions defaults;
  if (o.method != "lora") {
    throw Error(ErrorCode::kInvalidArgument,
                "--adapter and --method full: an adapter trains, or all parameters do; give one "
                "(strata merge makes a model of an adapter)");
  }
  const char* name = o.rank != defaults.rank                 ? "--rank"
                     : o.alpha != defaults.alpha             ? "--alpha"
                     : o.targets != defaults.targets         ? "--targets"
                     : o.expert_rank != defaults.expert_rank ? "--expert-rank"
                                                             : nullptr;
  if (name == nullptr) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{} and --adapter: the adapter at {} has its own; leave it out", name,
                          o.adapter));
}

void check_router_bias_method(const TrainOptions& o) {
  if (o.router_bias_rate <= 0 || o.method == "full") return;
  throw Error(ErrorCode::kInvalidArgument,
              "--router-bias-rate: the biases are the base model's, an adapter has no place for "
              "them; give --method full with it");
}

// What neither pairs nor rewards are trained with yet.
void check_together_with_loss(const TrainOptions& o) {
  const char* name = o.mtp_weight.value_or(0) > 0 ? "--mtp-weight"
                     : o.indexer_loss > 0         ? "--indexer-loss"
                     : !o.sweep.empty()           ? "several values of --lr"
                     : !o.stages.ranks.empty()    ? "--ranks"
                                                  : nullptr;
  if (name == nullptr) return;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("{} and --loss {}: not together yet; leave one out", name, o.loss.loss));
}

// What rewards are not trained with yet, or never.
void check_reward_options(const TrainOptions& o) {
  const TrainOptions defaults;
  if (!o.loss.of_rewards()) {
    const char* name = !o.reward.reward.empty()                                ? "--reward"
                       : o.reward.workers != defaults.reward.workers           ? "--reward-workers"
                       : o.reward.timeout != defaults.reward.timeout           ? "--reward-timeout"
                       : o.grpo.type != defaults.grpo.type                     ? "--grpo-loss"
                       : o.grpo.importance != defaults.grpo.importance         ? "--importance"
                       : o.rollouts.group_size != defaults.rollouts.group_size ? "--group-size"
                       : o.rollouts.max_tokens != defaults.rollouts.max_tokens ? "--max-tokens"
                       : o.rollouts.temperature != defaults.rollouts.temperature ? "--temperature"
                       : o.rollouts.updates != defaults.rollouts.updates         ? "--updates"
                       : o.rollouts.sample_rows                                  ? "--sample-rows"
                                                                                 : nullptr;
    if (name == nullptr) return;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: is of answers with rewards; give --loss grpo with it", name));
  }
  const auto refuse = [](const std::string& what) {
    throw Error(ErrorCode::kInvalidArgument, what);
  };
  if (o.reward.reward.empty())
    refuse(
        "--loss grpo: want --reward with it: a command, exact:FIELD, regex:PATTERN or "
        "json-schema:FILE");
  if (o.rollouts.max_tokens >= o.max_length) {
    refuse(
        fmt::format("--max-tokens {}: --max-length {} is of prompt and answer together; want less",
                    o.rollouts.max_tokens, o.max_length));
  }
  if (o.grpo.type == "cispo" && o.grpo.importance == "sequence")
    refuse("--importance sequence: --grpo-loss cispo has a ratio for each token; want token");
  if (o.grpo.importance == "sequence" && o.rollouts.updates == 1) {
    refuse(
        "--importance sequence: the first update's ratios are all 1; want --updates above 1 with "
        "it");
  }
  if (o.rollouts.sample_rows && *o.rollouts.sample_rows < o.rollouts.group_size) {
    refuse(fmt::format("--sample-rows {}: want a group at least, --group-size {}",
                       *o.rollouts.sample_rows, o.rollouts.group_size));
  }
  if (o.batch_tokens) refuse("--batch-tokens: with --loss grpo a step has --batch-size prompts");
  if (o.overlong != defaults.overlong)
    refuse("--overlong: prompts are answered whole, and longer ones are dropped; leave it out");
  if (o.train_on != defaults.train_on)
    refuse("--train-on: the sampled answers are trained on; leave it out");
  check_together_with_loss(o);
}

void check_reference_option(const TrainOptions& o) {
  if (o.loss.reference != "recompute") return;
  const char* why = !o.loss.has_reference()
                        ? "is of --loss dpo, whose pairs are compared with what "
                          "a reference model gives; leave it out"
                    : o.method == "full" ? "with --method full the start's weights are what "
                                           "trains; want --reference precompute"
                                         : nullptr;
  if (why != nullptr)
    throw Error(ErrorCode::kInvalidArgument, fmt::format("--reference recompute: {}", why));
}

// What pairs are not trained with yet, or never.
void check_pair_options(const TrainOptions& o) {
  check_loss_choice(o.loss, o.overlong);
  check_reference_option(o);
  if (o.loss.of_pairs()) check_together_with_loss(o);
}

}  // namespace

void check_option_combinations(const TrainOptions& o) {
  check_device(o.device);
  check_memory_options(o.memory, o.recompute, o.offload);
  data::parse_lr_schedule(o.lr_schedule);
  check_optimizer(o.optimizer, o.method);
  if (!o.adapter.empty()) check_adapter_options(o);
  check_pair_options(o);
  check_reward_options(o);
  check_router_bias_method(o);
  if (!o.report.empty() && !o.sweep.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "--report and several values of --lr: a page is of one run; sweep.md and sweep.svg "
                "of --out have them side by side");
  }
}

}  // namespace strata::apps
