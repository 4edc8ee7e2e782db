// SPDX-License-Identifier: Apache-2.0
#include "engine/plan/recompute_plan.h"

#include <algorithm>

#include "base/check.h"

namespace strata::engine {
namespace {

// Activations of one tag in layers where they take the same bytes and the same work.
struct SavedClass {
  model::SavedCost cost;  // of one layer
  std::vector<int64_t> layers;
};

// One choice of how many layers of the first classes are kept, and of these in files.
struct Choice {
  int64_t bytes = 0;
  double cost = 0.0;  // of what is recomputed and of what is moved
  int64_t kept = 0;   // of the last class
  int64_t offloaded = 0;
  size_t before = 0;  // the choice for the classes before it
};

bool is_input(const SavedClass& c) { return c.cost.tag == model::kLayerInputTag; }

PassPlan plan_pass_with(Engine& engine, PlanShape shape, const model::Recompute& recompute,
                        int64_t enough = INT64_MAX) {
  shape.recompute = recompute;
  return plan_pass(engine, shape, enough);
}

// With what the other passes in flight hold.
int64_t bytes_of(const PlanShape& shape, const PassPlan& pass) {
  return pass.total() + shape.in_flight * pass.held_bytes;
}

// Bytes of one layer of each class that can be recomputed.
int64_t recomputed_layer_bytes(const std::vector<SavedClass>& classes) {
  int64_t bytes = 0;
  for (const SavedClass& c : classes) bytes += is_input(c) ? 0 : c.cost.bytes;
  return bytes;
}

// `saved`: by a pass that keeps all.
std::vector<SavedClass> group_by_cost(std::span<const model::SavedCost> saved) {
  std::vector<SavedClass> classes;
  for (const model::SavedCost& cost : saved) {
    const auto same = std::find_if(classes.begin(), classes.end(), [&](const SavedClass& c) {
      return c.cost.tag == cost.tag && c.cost.bytes == cost.bytes && c.cost.flops == cost.flops;
    });
    if (same != classes.end()) {
      same->layers.push_back(cost.layer);
    } else {
      classes.push_back({cost, {cost.layer}});
    }
  }
  return classes;
}

// The first layers of each class are kept, of which the first are offloaded: they have the longest
// time to go and come back.
model::Recompute recompute_of(const std::vector<SavedClass>& classes,
                              const std::vector<Choice>& choices, int64_t num_layers) {
  std::vector<std::string> tags;
  std::vector<uint64_t> masks(static_cast<size_t>(num_layers)), offloaded = masks;
  for (size_t i = 0; i < classes.size(); ++i) {
    auto tag = std::find(tags.begin(), tags.end(), classes[i].cost.tag);
    if (tag == tags.end()) tag = tags.insert(tag, std::string(classes[i].cost.tag));
    const uint64_t bit = uint64_t{1} << (tag - tags.begin());
    for (int64_t k = 0; k < choices[i].kept; ++k) {
      const auto layer = static_cast<size_t>(classes[i].layers[static_cast<size_t>(k)]);
      masks[layer] |= bit;
      if (k < choices[i].offloaded) offloaded[layer] |= bit;
    }
  }
  return model::Recompute::keeping(std::move(tags), std::move(masks), std::move(offloaded));
}

// Those that no other is better than in both, by rising bytes.
std::vector<Choice> pareto_front_of(std::vector<Choice> choices) {
  std::sort(choices.begin(), choices.end(), [](const Choice& a, const Choice& b) {
    return a.bytes != b.bytes ? a.bytes < b.bytes : a.cost < b.cost;
  });
  std::vector<Choice> front;
  for (const Choice& choice : choices) {
    if (front.empty() || choice.cost < front.back().cost) front.push_back(choice);
  }
  return front;
}

// Bytes in files, at least: those of what is offloaded.
int64_t file_bytes(const std::vector<SavedClass>& classes, const std::vector<Choice>& choices) {
  int64_t bytes = 0;
  for (size_t i = 0; i < classes.size(); ++i) bytes += choices[i].offloaded * classes[i].cost.bytes;
  return bytes;
}

model::Recompute recompute_offloading_all(const std::vector<SavedClass>& classes) {
  std::vector<std::string> tags;
  for (const SavedClass& c : classes) {
    if (std::find(tags.begin(), tags.end(), c.cost.tag) == tags.end()) {
      tags.emplace_back(c.cost.tag);
    }
  }
  return model::Recompute::with_offload({}, tags);
}

// `pass` is what was counted with this choice.
RecomputePlan make_recompute_plan(const PlanShape& shape, const std::vector<SavedClass>& classes,
                                  const model::Recompute& recompute, const PassPlan& pass) {
  RecomputePlan plan;
  plan.recompute = recompute;
  plan.bytes = bytes_of(shape, pass);
  plan.uses = pass.uses;
  plan.file_bytes = pass.file_bytes;
  for (const SavedClass& c : classes) {
    const auto count = [&](bool (model::Recompute::*is)(int64_t, ScratchTag) const) {
      return std::count_if(c.layers.begin(), c.layers.end(),
                           [&](int64_t layer) { return (recompute.*is)(layer, c.cost.tag); });
    };
    plan.rows.push_back({.tag = c.cost.tag,
                         .layers = c.layers,
                         .num_kept = count(&model::Recompute::keeps),
                         .num_offloaded = count(&model::Recompute::offloads),
                         .layer_bytes = c.cost.bytes,
                         .layer_flops = c.cost.flops});
    const auto again = static_cast<double>(plan.rows.back().num_again());
    plan.flops += c.cost.flops * again;
    plan.again_bytes += kAgainMoves * static_cast<double>(c.cost.bytes) * again;
  }
  return plan;
}

// The plans of policies with a name.
std::vector<RecomputePlan> plan_presets(Engine& engine, const PlanShape& shape,
                                        const std::vector<SavedClass>& classes, bool offloads) {
  std::vector<RecomputePlan> plans;
  const auto add = [&](const model::Recompute& recompute) {
    if (recompute.offloads_any() && !offloads) return;
    plans.push_back(
        make_recompute_plan(shape, classes, recompute, plan_pass_with(engine, shape, recompute)));
  };
  add(model::Recompute::kFull);
  for (const model::RecomputePreset& preset : model::recompute_presets()) add(preset.value());
  return plans;
}

}  // namespace

// Choices of all classes, none of which is worse than another in both bytes and cost. Each level
// lists those of the first classes, by rising bytes: those besides a pass that has nothing of any
// class in memory.
class RecomputeChoices {
 public:
  // `copies`: passes that each hold what is kept. `adds_bytes`: of a class that is recomputed in
  // some layer, backward has one layer's in memory at the pass's fullest.
  RecomputeChoices(std::vector<SavedClass> classes, int64_t most_bytes, int64_t copies,
                   bool offloads, const Price& price, bool adds_bytes)
      : classes_(std::move(classes)),
        copies_(copies),
        price_(price),
        offloads_(offloads),
        adds_bytes_(adds_bytes) {
    levels_.push_back({Choice{}});
    for (const SavedClass& c : classes_) add_class(c, most_bytes);
  }
  [[nodiscard]] const std::vector<SavedClass>& classes() const { return classes_; }
  [[nodiscard]] const std::vector<Choice>& all() const { return levels_.back(); }
  // At a point of all().
  [[nodiscard]] std::vector<Choice> chosen_for_each_class(size_t point) const {
    std::vector<Choice> choices(classes_.size());
    for (size_t level = classes_.size(); level > 0; --level) {
      choices[level - 1] = levels_[level][point];
      point = choices[level - 1].before;
    }
    return choices;
  }

 private:
  // What is not in memory is recomputed, or offloaded: a layer of either costs as much as another,
  // so that some of each is never better than the cheaper of the two.
  [[nodiscard]] std::vector<Choice> options_of(const SavedClass& c) const {
    const int64_t layers = std::ssize(c.layers);
    const auto layer_bytes = static_cast<double>(c.cost.bytes);
    const double again = price_.of({.flops = c.cost.flops, .bytes = kAgainMoves * layer_bytes});
    const double moved = price_.of({.file_bytes = kFileMoves * layer_bytes});
    std::vector<Choice> choices;
    for (int64_t count = 0; count <= layers; ++count) {
      const int64_t rest = layers - count;
      const int64_t added = rest > 0 && adds_bytes_ ? c.cost.bytes : 0;
      const int64_t bytes = count * copies_ * c.cost.bytes;
      if (rest == 0 || !is_input(c)) {
        choices.push_back({bytes + added, static_cast<double>(rest) * again, count, 0});
      }
      if (rest > 0 && offloads_) {
        choices.push_back({bytes, static_cast<double>(rest) * moved, layers, rest});
      }
    }
    return choices;
  }

  void add_class(const SavedClass& c, int64_t most_bytes) {
    std::vector<Choice> grown;
    const std::vector<Choice>& before = levels_.back();
    const std::vector<Choice> own = options_of(c);
    for (size_t i = 0; i < before.size(); ++i) {
      for (const Choice& choice : own) {
        const int64_t bytes = before[i].bytes + choice.bytes;
        if (bytes > most_bytes) continue;
        grown.push_back({bytes, before[i].cost + choice.cost, choice.kept, choice.offloaded, i});
      }
    }
    levels_.push_back(pareto_front_of(std::move(grown)));
  }

  std::vector<SavedClass> classes_;
  int64_t copies_;
  Price price_;
  bool offloads_;
  bool adds_bytes_;
  std::vector<std::vector<Choice>> levels_;
};

RecomputePlan plan_given_recompute(Engine& engine, const PlanShape& shape,
                                   const model::Recompute& recompute) {
  const PassPlan all = plan_pass_with(engine, shape, model::Recompute::kNone);
  const PassPlan pass =
      recompute == model::Recompute::kNone ? all : plan_pass_with(engine, shape, recompute);
  return make_recompute_plan(shape, group_by_cost(all.saved), recompute, pass);
}

RecomputePlanner::RecomputePlanner(Engine& engine, const PlanShape& shape, bool offloads,
                                   const Price& price)
    : engine_(engine), shape_(shape), offloads_(offloads), price_(price) {
  const PassPlan all = plan_pass_with(engine, shape, model::Recompute::kNone);
  saved_ = all.saved;
  most_ = bytes_of(shape, all);
  least_recompute_ =
      offloads ? recompute_offloading_all(group_by_cost(saved_)) : model::Recompute::kFull;
  least_ = bytes_of(shape, plan_pass_with(engine, shape, least_recompute_));
}

RecomputePlanner::~RecomputePlanner() = default;

int64_t RecomputePlanner::count_bytes(const model::Recompute& recompute) const {
  return bytes_of(shape_, plan_pass_with(engine_, shape_, recompute));
}

// What a choice adds is counted from a pass that has nothing of any class in memory. Its fullest
// moment may be another than that of a layer that is recomputed (the head's, say), and then part of
// such a layer's space is there already.
void RecomputePlanner::init_choices() {
  std::vector<SavedClass> classes = group_by_cost(saved_);
  base_ = offloads_ ? least_ : count_bytes(recompute_offloading_all(classes));
  const int64_t added = count_bytes(model::Recompute::offloading_layer_inputs()) - base_;
  const bool adds_bytes = added > 0;
  if (adds_bytes) base_ -= std::max<int64_t>(0, recomputed_layer_bytes(classes) - added);
  choices_ = std::make_unique<RecomputeChoices>(std::move(classes), most_ - base_,
                                                shape_.in_stages ? shape_.in_flight : 1, offloads_,
                                                price_, adds_bytes);
}

std::vector<RecomputePlanner::Point> RecomputePlanner::pareto_front() {
  if (!choices_) init_choices();
  std::vector<Point> points;
  for (const Choice& choice : choices_->all()) {
    points.push_back({std::max(least_, base_ + choice.bytes), choice.cost});
  }
  return points;
}

model::Recompute RecomputePlanner::at(size_t point) const {
  CHECK(choices_ != nullptr && point < choices_->all().size(), point);
  return recompute_of(choices_->classes(), choices_->chosen_for_each_class(point),
                      engine_.model().weights->layers().num_layers());
}

RecomputePlan RecomputePlanner::plan(int64_t bytes) {
  CHECK(bytes >= least_, bytes, least_);
  return *plan(bytes, [](int64_t, int64_t) { return true; });
}

// The cheapest plan so far, of those that fit and are allowed.
struct RecomputePlanner::Best {
  int64_t bytes;  // at most
  Allowed allowed;
  const Price& price;
  std::optional<RecomputePlan> plan = {};

  // Whether it fits and is allowed.
  bool consider(RecomputePlan other) {
    if (other.bytes > bytes || !allowed(other.bytes, other.file_bytes)) return false;
    if (!plan || other.cost(price) < plan->cost(price)) plan = std::move(other);
    return true;
  }
};

// Where a pass takes too much, more than `enough`, it does not matter how much.
RecomputePlan RecomputePlanner::plan_choice(const model::Recompute& recompute,
                                            int64_t enough) const {
  return make_recompute_plan(shape_, choices_->classes(), recompute,
                             plan_pass_with(engine_, shape_, recompute, enough));
}

size_t RecomputePlanner::num_choices_within(int64_t bytes) const {
  const std::vector<Choice>& all = choices_->all();
  const auto beyond =
      std::upper_bound(all.begin(), all.end(), bytes - base_,
                       [](int64_t budget, const Choice& choice) { return budget < choice.bytes; });
  return static_cast<size_t>(beyond - all.begin());
}

// The list of choices does not depend on `bytes`, and what they add is no more than they take: the
// first that fits, by rising cost, is the best, and more bytes only fit more of them. Those that
// even at their least are not allowed, thousands where there is little space for files, are not
// counted.
void RecomputePlanner::consider_choices(Best& best) const {
  const std::vector<Choice>& all = choices_->all();
  for (size_t i = num_choices_within(best.bytes); i-- > 0;) {
    if (best.plan && all[i].cost >= best.plan->cost(price_)) break;
    const int64_t files = file_bytes(choices_->classes(), choices_->chosen_for_each_class(i));
    if (!best.allowed(std::max(least_, base_ + all[i].bytes), files)) continue;
    if (best.consider(plan_choice(at(i), best.bytes))) break;
  }
}

std::optional<RecomputePlan> RecomputePlanner::plan(int64_t bytes, Allowed allowed) {
  Best best = {.bytes = bytes, .allowed = allowed, .price = price_};
  if (bytes >= most_ &&
      best.consider(plan_given_recompute(engine_, shape_, model::Recompute::kNone)))
    return best.plan;
  if (!choices_) init_choices();
  if (named_.empty()) named_ = plan_presets(engine_, shape_, choices_->classes(), offloads_);
  for (const RecomputePlan& plan : named_) best.consider(plan);
  consider_choices(best);
  if (!best.plan) best.consider(plan_choice(least_recompute_, bytes));
  return best.plan;
}

}  // namespace strata::engine
