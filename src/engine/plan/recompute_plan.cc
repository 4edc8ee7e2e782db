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

// One choice of how many layers of the first classes are kept.
struct Choice {
  int64_t bytes = 0;
  double flops = 0.0;  // that need not be done again
  int64_t count = 0;   // of the last class
  size_t before = 0;   // the choice for the classes before it
};

PassPlan plan_with(Engine& engine, PlanShape shape, const model::Recompute& recompute) {
  shape.recompute = recompute;
  return plan_pass(engine, shape);
}

std::vector<SavedClass> classes_of(Engine& engine, const PlanShape& shape) {
  std::vector<SavedClass> classes;
  for (const model::SavedCost& cost : plan_with(engine, shape, model::Recompute::kNone).saved) {
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

// The first layers of each class are kept.
model::Recompute keep_counts(const std::vector<SavedClass>& classes,
                             const std::vector<int64_t>& counts, int64_t num_layers) {
  std::vector<std::string> tags;
  std::vector<uint64_t> masks(static_cast<size_t>(num_layers));
  for (size_t i = 0; i < classes.size(); ++i) {
    auto tag = std::find(tags.begin(), tags.end(), classes[i].cost.tag);
    if (tag == tags.end()) tag = tags.insert(tag, std::string(classes[i].cost.tag));
    for (int64_t k = 0; k < counts[i]; ++k) {
      masks[static_cast<size_t>(classes[i].layers[static_cast<size_t>(k)])] |=
          uint64_t{1} << (tag - tags.begin());
    }
  }
  return model::Recompute::keeping(std::move(tags), std::move(masks));
}

}  // namespace

// Choices of all classes, none of which is worse than another in both bytes and work. Each level
// lists those of the first classes, by rising bytes.
class RecomputeChoices {
 public:
  RecomputeChoices(std::vector<SavedClass> classes, int64_t most_bytes)
      : classes_(std::move(classes)) {
    levels_.push_back({Choice{}});
    for (const SavedClass& c : classes_) add_class(c, most_bytes);
  }
  [[nodiscard]] const std::vector<SavedClass>& classes() const { return classes_; }
  [[nodiscard]] const std::vector<Choice>& all() const { return levels_.back(); }
  // How many layers of each class.
  [[nodiscard]] std::vector<int64_t> counts(size_t index) const {
    std::vector<int64_t> counts(classes_.size());
    for (size_t level = classes_.size(); level > 0; --level) {
      const Choice& choice = levels_[level][index];
      counts[level - 1] = choice.count;
      index = choice.before;
    }
    return counts;
  }

 private:
  // Beside full recompute, which has one layer's at a time: kept in every layer, no such one is
  // there.
  static int64_t added_layers(const SavedClass& c, int64_t count) {
    return std::min(count, std::ssize(c.layers) - 1);
  }

  void add_class(const SavedClass& c, int64_t most_bytes) {
    std::vector<Choice> grown;
    const std::vector<Choice>& before = levels_.back();
    for (size_t i = 0; i < before.size(); ++i) {
      for (int64_t count = 0; count <= std::ssize(c.layers); ++count) {
        const int64_t bytes = before[i].bytes + added_layers(c, count) * c.cost.bytes;
        if (bytes > most_bytes) break;
        grown.push_back(
            {bytes, before[i].flops + static_cast<double>(count) * c.cost.flops, count, i});
      }
    }
    std::sort(grown.begin(), grown.end(), [](const Choice& a, const Choice& b) {
      return a.bytes != b.bytes ? a.bytes < b.bytes : a.flops > b.flops;
    });
    std::vector<Choice>& level = levels_.emplace_back();
    for (const Choice& choice : grown) {
      if (level.empty() || choice.flops > level.back().flops) level.push_back(choice);
    }
  }

  std::vector<SavedClass> classes_;
  std::vector<std::vector<Choice>> levels_;
};

namespace {

// `pass` is what was counted with this choice.
RecomputePlan describe(const std::vector<SavedClass>& classes, const model::Recompute& recompute,
                       const PassPlan& pass) {
  RecomputePlan plan;
  plan.recompute = recompute;
  plan.bytes = pass.total();
  plan.uses = pass.uses;
  for (const SavedClass& c : classes) {
    const auto kept = std::count_if(c.layers.begin(), c.layers.end(), [&](int64_t layer) {
      return recompute.keeps(layer, c.cost.tag);
    });
    plan.rows.push_back({.tag = c.cost.tag,
                         .layers = c.layers,
                         .num_kept = kept,
                         .layer_bytes = c.cost.bytes,
                         .layer_flops = c.cost.flops});
    plan.flops += c.cost.flops * static_cast<double>(plan.rows.back().num_again());
  }
  return plan;
}

}  // namespace

RecomputePlan describe_recompute(Engine& engine, const PlanShape& shape,
                                 const model::Recompute& recompute) {
  return describe(classes_of(engine, shape), recompute, plan_with(engine, shape, recompute));
}

RecomputePlanner::RecomputePlanner(Engine& engine, const PlanShape& shape)
    : engine_(engine),
      shape_(shape),
      least_(plan_with(engine, shape, model::Recompute::kFull).total()),
      most_(plan_with(engine, shape, model::Recompute::kNone).total()) {}

RecomputePlanner::~RecomputePlanner() = default;

RecomputePlan RecomputePlanner::plan(int64_t bytes) {
  CHECK(bytes >= least_, bytes, least_);
  if (bytes >= most_) return describe_recompute(engine_, shape_, model::Recompute::kNone);
  if (!choices_) {
    choices_ = std::make_unique<RecomputeChoices>(classes_of(engine_, shape_), most_ - least_);
  }
  const auto described = [&](const model::Recompute& recompute, const PassPlan& pass) {
    return describe(choices_->classes(), recompute, pass);
  };
  const auto counted = [&](const model::Recompute& recompute) {
    return plan_with(engine_, shape_, recompute);
  };
  const std::vector<Choice>& all = choices_->all();
  const auto beyond =
      std::upper_bound(all.begin(), all.end(), bytes - least_,
                       [](int64_t room, const Choice& choice) { return room < choice.bytes; });
  for (auto i = static_cast<size_t>(beyond - all.begin()); i-- > 0;) {
    const model::Recompute recompute = keep_counts(choices_->classes(), choices_->counts(i),
                                                   engine_.model().weights->layers().num_layers());
    const PassPlan pass = counted(recompute);
    if (pass.total() <= bytes) return described(recompute, pass);
  }
  return described(model::Recompute::kFull, counted(model::Recompute::kFull));
}

}  // namespace strata::engine
