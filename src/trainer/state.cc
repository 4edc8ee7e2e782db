// SPDX-License-Identifier: Apache-2.0
#include "trainer/state.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <optional>

#include "base/check.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "checkpoint/state.h"
#include "setup/model_identity.h"
#include "setup/ranks.h"
#include "text/json_field.h"
#include "trainer/options.h"

namespace strata::apps {
namespace {

constexpr int64_t kFormat = 5;
constexpr int64_t kFirstFormat = 2;  // that is still read

std::string state_dir(const std::string& out) { return out + "/trainer"; }

// A hash of their content, unpacked, and of their weights.
std::string hash_files_with_weights(const std::vector<data::DataFile>& files) {
  std::string text;
  for (const data::DataFile& file : files) {
    if (!text.empty()) text += ",";
    text += fmt::format("{:016x}", data::hash_content(*file.file));
    if (file.weight != 1) text += fmt::format(":{}", file.weight);
  }
  return text;
}

// As they are recorded, with their settings. What others make meaningless does not count.
TrainOptions effective_options(const TrainSettings& settings) {
  const TrainOptions defaults;
  TrainOptions o = settings.options;
  o.lr = settings.lr;
  o.batch_size = settings.batch_size;
  o.batch_tokens = settings.batch_tokens;
  o.gradient_accumulation_steps = 1;
  o.steps = settings.steps;
  o.epochs = settings.steps > 0 ? 0 : settings.epochs;
  o.warmup_steps = settings.warmup_steps;
  o.warmup_ratio.reset();
  if (!o.eval.empty()) o.eval_fraction = 0;
  if (o.optimizer == "adamw") o.muon_momentum = defaults.muon_momentum;
  if (o.method == "full" || !o.adapter.empty()) {
    o.rank = defaults.rank;
    o.alpha = defaults.alpha;
    o.targets = defaults.targets;
    o.expert_rank = defaults.expert_rank;
  }
  return o;
}

[[noreturn]] void fail(const std::string& out, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("resume: {}/state.json: {}", state_dir(out), what));
}

// Format 4 had neither another template than the model's nor variables for it; format 3 had no
// choice of what becomes of long examples, and fresh adapters alone; format 2 recorded what the
// options said, and the learning rate that is no longer the default.
void upgrade_options(int64_t format, boost::json::object& options) {
  if (format < 5) {
    options["chat-template"] = "";
    options["vars"] = "";
  }
  // A run that began before there were these.
  options.emplace("fields", "");
  options.emplace("load-in-4bit", "off");
  options.emplace("loss", "cross_entropy");
  options.emplace("loss-type", "sigmoid");
  options.emplace("beta", "0.1");
  options.emplace("label-smoothing", "0");
  options.emplace("reward", "");
  options.emplace("grpo-loss", "dapo");
  options.emplace("importance", "token");
  options.emplace("group-size", "8");
  options.emplace("max-tokens", "256");
  options.emplace("temperature", "1");
  options.emplace("updates", "1");
  if (format < 4) {
    options["overlong"] = "drop";
    options["adapter"] = "";
  }
  if (format > kFirstFormat) return;
  if (const boost::json::value* schedule = options.if_contains("schedule")) {
    options["lr-schedule"] = *schedule;
    options.erase("schedule");
  }
  options["batch-size"] = "0";
  const boost::json::value* method = options.if_contains("method");
  if (options["lr"] == "default") options["lr"] = method && *method == "full" ? "1e-05" : "0.0002";
}

struct RunRecord {
  int64_t step = 0;
  boost::json::object options;
  Evaluations evaluations;  // format 2 has none
};

std::string evaluations_text(const Evaluations& e) {
  if (!e.lowest) return "null";
  return fmt::format("{{\"lowest\":{},\"lowest_step\":{},\"since_lowest\":{},\"kept_step\":{}}}",
                     *e.lowest, e.lowest_step, e.since_lowest, e.kept_step);
}

Evaluations parse_evaluations(const boost::json::object& state) {
  const boost::json::value* value = state.if_contains("evaluations");
  const boost::json::object* object = value == nullptr ? nullptr : value->if_object();
  if (object == nullptr) return {};
  const auto number = [&](const char* name) {
    const boost::json::value* found = object->if_contains(name);
    return found != nullptr && found->is_number() ? found->to_number<double>() : 0.0;
  };
  // States of before had none, and what they say was lowest was kept where anything was.
  const char* kept = object->contains("kept_step") ? "kept_step" : "lowest_step";
  return {.lowest = number("lowest"),
          .lowest_step = static_cast<int64_t>(number("lowest_step")),
          .since_lowest = static_cast<int64_t>(number("since_lowest")),
          .kept_step = static_cast<int64_t>(number(kept))};
}

std::string record_json(TrainJob& job, const std::string& fingerprint) {
  return fmt::format(
      "{{\"format\":{},\"step\":{},\"num_steps\":{},\"evaluations\":{},\"options\":{}}}\n", kFormat,
      job.steps_done(), job.num_steps(), evaluations_text(job.evaluations()), fingerprint);
}

std::vector<TensorDecl> tensors_of_state(TrainJob& job) {
  std::vector<TensorDecl> tensors;
  for (const StateBlock& block : job.blocks_of_state())
    tensors.push_back({block.name, DType::kF32, Shape{block.size}});
  return tensors;
}

RunRecord parse_record(const std::string& out, const std::string& json) {
  const boost::json::value value = text::parse_json(json, state_dir(out) + "/state.json");
  const boost::json::object* object = value.if_object();
  const auto int_of = [&](const char* name) -> int64_t {
    const boost::json::value* number = object == nullptr ? nullptr : object->if_contains(name);
    return number != nullptr && number->is_int64() ? number->get_int64() : -1;
  };
  const int64_t format = int_of("format"), step = int_of("step");
  if (format < kFirstFormat || format > kFormat || step < 0 || !object->contains("options") ||
      !object->at("options").is_object()) {
    fail(out, "not a state that this version reads");
  }
  RunRecord record{.step = step,
                   .options = object->at("options").get_object(),
                   .evaluations = parse_evaluations(*object)};
  upgrade_options(format, record.options);
  return record;
}

// A hash of what an option names, files of data or a model; else nothing.
std::string hash_content_of_option(const OptionRow& row, const TrainOptions& options,
                                   const ModelTexts& model, const FilesOfRun& files) {
  if (row.results_by == ResultsBy::kModel) {
    if (row.name == "model") return compute_model_identity(model);
    return row.text().empty() ? "" : hash_adapter_or_model(row.text());
  }
  if (row.name == "chat-template") {
    if (!options.chat.names_file()) return options.chat.file;
    return fmt::format("{:016x}", data::hash_content(data::InputFile(options.chat.file)));
  }
  CHECK(row.name == "data" || row.name == "eval", row.name);
  if (row.name == "data") return hash_files_with_weights(files.train);
  return options.eval.empty() ? "" : hash_files_with_weights(files.eval);
}

}  // namespace

std::string compute_train_fingerprint(const TrainSettings& settings, const ModelTexts& model,
                                      const FilesOfRun& files, const std::string& cpu_path) {
  TrainOptions o = effective_options(settings);
  boost::json::object values = {{"cpu path", cpu_path}};
  const OptionTable table = option_table_of(o);
  for (const OptionRow& row : table.rows()) {
    switch (row.results_by) {
      case ResultsBy::kNothing:
        break;
      case ResultsBy::kValue:
        values[row.name] = row.text();
        break;
      case ResultsBy::kFile:
      case ResultsBy::kModel:
        values[row.name] = hash_content_of_option(row, o, model, files);
        break;
    }
  }
  return boost::json::serialize(values);
}

bool has_train_state(const std::string& out) { return TrainerState::exists(state_dir(out)); }

std::string read_recorded_options(const std::string& out) {
  return boost::json::serialize(parse_record(out, TrainerState(state_dir(out)).json()).options);
}

void save_run(TrainJob& job, const std::string& fingerprint) {
  const std::string& out = job.settings().out;
  std::optional<TrainerStateWriter> writer;
  if (job.is_first_rank()) writer.emplace(state_dir(out), tensors_of_state(job));
  job.gather_state([&](const std::string& block, TensorView values) {
    const HostAccess access(job.engine().backend().allocator());
    writer->append(block, {values.f32(), static_cast<size_t>(values.shape.num_elements())});
  });
  if (!job.is_first_rank()) return job.export_to(out);
  writer->commit(record_json(job, fingerprint));
  job.export_to(out);
}

namespace {

// Where a run is that goes on.
struct SavedAt {
  int64_t step = 0;
  Evaluations evaluations;
};

// Which values of the state a rank wants; of no block: it has all.
struct WantedPart {
  std::array<char, 32> block = {};
  int64_t size = 0, first = 0, count = 0;
};

constexpr int64_t kTag = 0;
constexpr int64_t kPieceValues = (1 << 20) / dtype_bytes(DType::kF32);

// A line for each option that was another; empty: none was.
std::string describe_differing_options(const RunRecord& record, const std::string& fingerprint) {
  const boost::json::object wanted = boost::json::parse(fingerprint).as_object();
  std::string faults;
  for (const auto& option : wanted) {
    const boost::json::value* was = record.options.if_contains(option.key());
    const std::string before = was == nullptr ? "absent" : boost::json::serialize(*was);
    const std::string now = boost::json::serialize(option.value());
    if (before == now) continue;
    faults += fmt::format("\n  {}: was {}, now {}", std::string(option.key()), before, now);
    if (option.key() == "cpu path" && was != nullptr && was->is_string()) {
      faults += fmt::format("; STRATA_CPU_PATH={} goes on as the run began",
                            std::string_view(was->as_string()));
    }
  }
  return faults;
}

// Where a recorded run goes on; Error where its options differ or it has too many steps.
SavedAt resume_position(TrainJob& job, const RunRecord& record, const std::string& fingerprint) {
  const std::string& out = job.settings().out;
  const std::string faults = describe_differing_options(record, fingerprint);
  if (!faults.empty()) fail(out, "the run was started with other options:" + faults);
  if (record.step > job.num_steps()) {
    fail(out, fmt::format("step {} of {}", record.step, job.num_steps()));
  }
  return {record.step, record.evaluations};
}

// What the first rank's stages have.
void read_own_parts(TrainJob& job, const TrainerState& saved) {
  const HostAccess access(job.engine().backend().allocator());
  for (const StatePart& part : job.parts_of_state()) {
    saved.read(part.block, {part.size}, part.first, part.values.shape.num_elements(),
               part.values.f32());
  }
}

// Gives a rank the parts that it asks for.
void send_wanted_parts(Comm& comm, int to, const TrainerState& saved) {
  std::vector<float> values;
  for (;;) {
    WantedPart wanted;
    comm.receive_bytes(to, kTag, &wanted, sizeof(wanted));
    const std::string block = wanted.block.data();
    if (block.empty()) return;
    values.resize(static_cast<size_t>(wanted.count));
    saved.read(block, {wanted.size}, wanted.first, wanted.count, values.data());
    comm.send_bytes(to, kTag, values.data(), wanted.count * dtype_bytes(DType::kF32));
  }
}

// `count` values of the part, of which these begin at `first`.
WantedPart piece_of(const StatePart& part, int64_t first, int64_t count) {
  WantedPart piece = {.size = part.size, .first = part.first + first, .count = count};
  CHECK(part.block.size() < piece.block.size(), part.block);
  std::copy(part.block.begin(), part.block.end(), piece.block.begin());
  return piece;
}

// Asks the first rank for its parts, piece by piece: what is on its way takes memory too.
void fetch_parts(Comm& comm, const std::vector<StatePart>& parts) {
  for (const StatePart& part : parts) {
    const int64_t size = part.values.shape.num_elements();
    for (int64_t first = 0; first < size; first += kPieceValues) {
      const WantedPart wanted = piece_of(part, first, std::min(kPieceValues, size - first));
      comm.send_bytes(0, kTag, &wanted, sizeof(wanted));
      comm.receive(0, kTag, part.values.part(first, {wanted.count}));
    }
  }
  const WantedPart none;
  comm.send_bytes(0, kTag, &none, sizeof(none));
}

}  // namespace

void load_train_state(TrainJob& job, const std::string& fingerprint) {
  Comm& comm = job.pipeline().comm();
  SavedAt at;
  if (job.is_first_rank()) {
    const std::string& out = job.settings().out;
    const TrainerState saved(state_dir(out));
    at = resume_position(job, parse_record(out, saved.json()), fingerprint);
    broadcast(comm, at);
    read_own_parts(job, saved);
    for (int other = 1; other < comm.size(); ++other) send_wanted_parts(comm, other, saved);
  } else {
    broadcast(comm, at);
    fetch_parts(comm, job.parts_of_state());
  }
  job.restore_progress(at.step, at.evaluations);
}

}  // namespace strata::apps
