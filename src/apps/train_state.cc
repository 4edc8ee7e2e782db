#include "apps/train_state.h"

#include <fmt/format.h>

#include <boost/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/rng.h"
#include "checkpoint/state.h"

namespace strata::apps {
namespace {

constexpr int64_t kFormat = 1;
constexpr const char* kNames[] = {"values", "first_moments", "second_moments"};

std::string state_dir(const std::string& out) { return out + "/trainer"; }

std::string hash_of_file(const std::string& path) {
  if (path.empty()) return "";
  const MappedFile file(path);
  const auto bytes = file.bytes();
  return fmt::format("{:016x}",
                     hash_name(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

}  // namespace

std::string train_fingerprint(const TrainOptions& o, const std::string& cpu_path) {
  boost::json::object values{
      {"method", o.method},
      {"dtype", o.dtype},
      {"data", hash_of_file(o.data)},
      {"eval", hash_of_file(o.eval)},
      {"eval-fraction", o.eval.empty() ? o.eval_fraction : 0.0},
      {"train-on", o.train_on},
      {"max-length", o.max_length},
      {"batch-tokens", o.batch_tokens},
      {"epochs", o.steps > 0 ? 0 : o.epochs},
      {"steps", o.steps},
      {"lr", o.lr ? fmt::format("{}", *o.lr) : "default"},
      {"schedule", o.schedule},
      {"warmup-steps", o.warmup_steps},
      {"beta1", o.beta1},
      {"beta2", o.beta2},
      {"eps", o.eps},
      {"weight-decay", o.weight_decay},
      {"clip", o.clip},
      {"seed", o.seed},
      {"cpu path", cpu_path},
  };
  if (o.method == "lora") {
    values["rank"] = o.rank;
    values["alpha"] = o.alpha;
    values["targets"] = o.targets;
  }
  return boost::json::serialize(values);
}

bool has_train_state(const std::string& out) { return TrainerState::exists(state_dir(out)); }

void save_train_state(TrainJob& job, const std::string& fingerprint) {
  const std::string& out = job.options().out;
  const std::vector<TensorView> state = job.state();
  std::vector<TensorDecl> tensors;
  for (size_t i = 0; i < state.size(); ++i)
    tensors.push_back({kNames[i], DType::kF32, state[i].shape});
  TrainerStateWriter writer(state_dir(out), std::move(tensors));
  for (size_t i = 0; i < state.size(); ++i) writer.append_view(kNames[i], state[i]);
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
  const std::vector<TensorView> state = job.state();
  for (size_t i = 0; i < state.size(); ++i) saved.read(kNames[i], state[i].shape, state[i].f32());
  job.restore(step);
}

}  // namespace strata::apps
