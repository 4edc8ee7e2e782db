#include "apps/train/state.h"

#include <fmt/format.h>

#include <boost/json.hpp>

#include "apps/options.h"
#include "apps/setup/model_identity.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/rng.h"
#include "checkpoint/state.h"

namespace strata::apps {
namespace {

constexpr int64_t kFormat = 2;

std::string state_dir(const std::string& out) { return out + "/trainer"; }

std::string hash_of_file(const std::string& path) {
  if (path.empty()) return "";
  const MappedFile file(path);
  const auto bytes = file.bytes();
  return fmt::format("{:016x}",
                     hash_name(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

// What others make meaningless does not count.
TrainOptions effective(TrainOptions o) {
  const TrainOptions defaults;
  if (!o.eval.empty()) o.eval_fraction = 0;
  if (o.steps > 0) o.epochs = 0;
  if (o.optimizer == "adamw") o.muon_momentum = defaults.muon_momentum;
  if (o.method == "full") {
    o.rank = defaults.rank;
    o.alpha = defaults.alpha;
    o.targets = defaults.targets;
    o.expert_rank = defaults.expert_rank;
  }
  return o;
}

}  // namespace

std::string train_fingerprint(const TrainOptions& options, const std::string& cpu_path) {
  TrainOptions o = effective(options);
  boost::json::object values = {{"cpu path", cpu_path}};
  const OptionTable table = options_of(o);
  for (const OptionRow& row : table.rows()) {
    switch (row.results_by) {
      case ResultsBy::kNothing:
        break;
      case ResultsBy::kValue:
        values[row.name] = row.text();
        break;
      case ResultsBy::kFile:
        values[row.name] = hash_of_file(row.text());
        break;
      case ResultsBy::kModel:
        values[row.name] = model_identity(row.text());
        break;
    }
  }
  return boost::json::serialize(values);
}

bool has_train_state(const std::string& out) { return TrainerState::exists(state_dir(out)); }

void save_train_state(TrainJob& job, const std::string& fingerprint) {
  const std::string& out = job.options().out;
  const std::vector<StateBlock> state = job.state();
  if (!job.is_first_rank()) return job.export_to(out);
  const HostAccess access(job.engine().backend().allocator());
  std::vector<TensorDecl> tensors;
  for (const StateBlock& block : state)
    tensors.push_back({block.name, DType::kF32, block.values.shape});
  TrainerStateWriter writer(state_dir(out), std::move(tensors));
  for (const StateBlock& block : state) writer.append_view(block.name, block.values);
  writer.commit(fmt::format("{{\"format\":{},\"step\":{},\"num_steps\":{},\"options\":{}}}\n",
                            kFormat, job.steps_done(), job.num_steps(), fingerprint));
  job.export_to(out);
}

void load_train_state(TrainJob& job, const std::string& fingerprint) {
  const std::string dir = state_dir(job.options().out);
  const TrainerState saved(dir);
  const boost::json::value value = boost::json::parse(saved.json());
  const auto fail = [&](const std::string& what) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("resume: {}/state.json: {}", dir, what));
  };
  const boost::json::object* object = value.if_object();
  if (object == nullptr || !object->contains("format") || !object->contains("step") ||
      !object->at("step").is_int64() || object->at("format") != kFormat ||
      !object->contains("options") || !object->at("options").is_object()) {
    fail("not a state that this version wrote");
  }
  const boost::json::object wanted = boost::json::parse(fingerprint).as_object();
  std::string faults;
  for (const auto& option : wanted) {
    const boost::json::value* was = object->at("options").get_object().if_contains(option.key());
    const std::string before = was == nullptr ? "absent" : boost::json::serialize(*was);
    const std::string now = boost::json::serialize(option.value());
    if (before != now)
      faults += fmt::format("\n  {}: was {}, now {}", std::string(option.key()), before, now);
  }
  if (!faults.empty()) fail("the run was started with other options:" + faults);
  const int64_t step = object->at("step").get_int64();
  if (step < 0 || step > job.num_steps()) fail(fmt::format("step {} of {}", step, job.num_steps()));
  const HostAccess access(job.engine().backend().allocator());
  for (const StatePart& part : job.parts_of_state()) {
    saved.read(part.block, {part.size}, part.first, part.values.shape.num_elements(),
               part.values.f32());
  }
  job.restore(step);
}

}  // namespace strata::apps
