#include "engine/plan/recompute_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

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

// Choices of all classes, none of which is worse than another in both bytes and work. Each level
// lists those of the first classes, by rising bytes.
class Choices {
 public:
  Choices(const std::vector<SavedClass>& classes, int64_t most_bytes) : classes_(classes) {
    levels_.push_back({Choice{}});
    for (const SavedClass& c : classes) add_class(c, most_bytes);
  }
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

  const std::vector<SavedClass>& classes_;
  std::vector<std::vector<Choice>> levels_;
};

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

RecomputePlan describe_recompute(Engine& engine, const PlanShape& shape,
                                 const model::Recompute& recompute) {
  RecomputePlan plan;
  plan.recompute = recompute;
  plan.bytes = plan_with(engine, shape, recompute).total();
  for (const SavedClass& c : classes_of(engine, shape)) {
    const auto kept = std::count_if(c.layers.begin(), c.layers.end(), [&](int64_t layer) {
      return recompute.keeps(layer, c.cost.tag);
    });
    plan.rows.push_back({.tag = c.cost.tag,
                         .num_layers = std::ssize(c.layers),
                         .num_kept = kept,
                         .layer_bytes = c.cost.bytes,
                         .layer_flops = c.cost.flops});
    plan.flops += c.cost.flops * static_cast<double>(std::ssize(c.layers) - kept);
  }
  return plan;
}

RecomputePlan plan_recompute(Engine& engine, const PlanShape& shape, int64_t bytes) {
  if (plan_with(engine, shape, model::Recompute::kNone).total() <= bytes)
    return describe_recompute(engine, shape, model::Recompute::kNone);
  const int64_t least = plan_with(engine, shape, model::Recompute::kFull).total();
  if (least > bytes) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a pass of {} tokens takes {} bytes at least, with full recompute; "
                            "there are {}",
                            shape.pass_tokens, least, std::max<int64_t>(0, bytes)));
  }
  const std::vector<SavedClass> classes = classes_of(engine, shape);
  const Choices choices(classes, bytes - least);
  for (size_t i = choices.all().size(); i-- > 0;) {
    const model::Recompute recompute =
        keep_counts(classes, choices.counts(i), engine.config().num_layers());
    if (plan_with(engine, shape, recompute).total() <= bytes)
      return describe_recompute(engine, shape, recompute);
  }
  return describe_recompute(engine, shape, model::Recompute::kFull);
}

}  // namespace strata::engine
