// SPDX-License-Identifier: Apache-2.0
#include "apps/probe/probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <span>

#include "apps/options.h"
#include "apps/probe/probe_request.h"
#include "apps/probe/stats.h"
#include "backend/thread_comm.h"
#include "base/error.h"
#include "base/files.h"
#include "checkpoint/safetensors_writer.h"
#include "engine/pipeline/sent_plan.h"
#include "engine/sampling/sampling_loop.h"
#include "model/adapter/tensors.h"
#include "setup/engine_setup.h"
#include "setup/model_identity.h"
#include "setup/ranks.h"
#include "setup/sent_text.h"
#include "setup/weight_group.h"

namespace strata::apps {
namespace {

constexpr int64_t kMaxRequestBytes = int64_t{1} << 30;

std::vector<int64_t> dims_of(const Shape& shape) {
  std::vector<int64_t> dims;
  for (int axis = 0; axis < shape.rank(); ++axis) dims.push_back(shape[axis]);
  return dims;
}

// On one rank. Each runs all of it; rank 0 has the results.
class Probe {
 public:
  Probe(const ProbeOptions& options, const LoadSpec& spec, const ProbeRequest& request,
        ProbeStats* stats)
      : options_(options), spec_(spec), request_(request), stats_(stats) {}

  // Rank 0 fills `results`.
  void run_on_rank(Comm& comm, const engine::PipelinePlan& plan, api::TensorSink& results) {
    run_.pipeline = plan;
    pipeline_ = load_runner(comm, run_, spec_);
    for (const std::string& dir : options_.adapters) slots_.push_back(pipeline_->load_adapter(dir));
    check_samples();
    probe_forward();
    if (request_.adapter_grads) probe_adapter_gradients();
    if (request_.param_grads) probe_parameter_gradients();
    if (!request_.samples.empty()) probe_samples();
    if (request_.train) probe_training();
    if (stats_ != nullptr) record_stats();
    if (pipeline_->is_first_rank()) results = std::move(sink_);
  }

 private:
  enum class AdapterValues : uint8_t { kWeights, kGradients };

  void check_samples() {
    // The engine checks ids and samples; do it before any compute, with the first call that would.
    for (size_t i = 0; i < request_.samples.size(); ++i) {
      pipeline_->engine().check(request_.samples[i], i);
    }
  }

  api::Batch make_batch(api::Gradients gradients) const {
    api::Batch out;
    out.sequences = request_.sequences;
    out.gradients = gradients;
    out.mtp_weight = request_.mtp_weight;
    if (gradients != api::Gradients::kNone) out.indexer_weight = request_.indexer_weight;
    return out;
  }

  std::vector<float>& add_result(const std::string& name, const std::vector<int64_t>& shape) {
    return sink_.add(name, shape).values;
  }

  // One tensor of all sequences' tokens.
  void add_token_values(const std::string& name, const api::BatchResult& result,
                        std::vector<float> api::SequenceResult::* member) {
    int64_t tokens = 0;
    for (const api::Datum& datum : request_.data) tokens += std::ssize(datum.tokens);
    std::vector<float>& out = add_result(name, {tokens});
    size_t at = 0;
    for (const api::SequenceResult& sequence : result.sequences) {
      for (const float value : sequence.*member) out[at++] = value;
    }
  }

  void probe_forward() {
    api::Batch wanted = make_batch(api::Gradients::kNone);
    wanted.want_hidden_states = request_.hidden_states;
    wanted.want_logits = request_.logits;
    wanted.want_loss = request_.logprobs || request_.loss;
    const api::BatchResult result = pipeline_->run(wanted, &sink_);
    sample_memory();
    if (request_.logprobs) add_token_values("logprobs", result, &api::SequenceResult::logprobs);
    if (request_.loss) {
      add_token_values("loss", result, &api::SequenceResult::losses);
      add_result("loss_sum", {1})[0] = static_cast<float>(result.loss_sum);
    }
    if (request_.loss && request_.mtp_weight > 0.0f) {
      add_token_values("mtp_loss", result, &api::SequenceResult::mtp_losses);
      add_result("mtp_loss_sum", {1})[0] = static_cast<float>(result.mtp_loss_sum);
    }
  }

  // Only a pass that took gradients has them.
  void add_indexer_losses(const api::BatchResult& result) {
    if (request_.indexer_weight == 0.0f || !request_.loss) return;
    std::vector<float> losses;
    for (const api::SequenceResult& sequence : result.sequences)
      losses.insert(losses.end(), sequence.indexer_losses.begin(), sequence.indexer_losses.end());
    add_result("indexer_loss", {std::ssize(losses)}) = losses;
    add_result("indexer_loss_sum", {1})[0] = static_cast<float>(result.indexer_loss_sum);
  }

  // Every LoRA tensor of every adapter, under the names of its file.
  void gather_adapter_tensors(const std::string& prefix, AdapterValues which) {
    for (size_t k = 0; k < slots_.size(); ++k) {
      const model::LoraAdapter* whole = pipeline_->gather().adapter(slots_[k]);
      if (whole == nullptr) continue;
      const HostAccess access(pipeline_->engine().backend().allocator());
      for (const model::AdapterTensor& tensor : model::adapter_tensors(*whole)) {
        add_adapter_tensor(fmt::format("{}.{}.{}", prefix, k + 1, tensor.name),
                           whole->modules()[tensor.module], tensor, which);
      }
    }
  }

  void add_adapter_tensor(const std::string& name, const model::LoraModule& module,
                          const model::AdapterTensor& tensor, AdapterValues which) {
    const bool gradients = which == AdapterValues::kGradients;
    const TensorView& values =
        gradients ? (tensor.is_b ? module.d_b : module.d_a) : (tensor.is_b ? module.b : module.a);
    copy_to_stored(module, tensor, values, add_result(name, dims_of(tensor.shape)).data());
  }

  void probe_adapter_gradients() {
    const auto for_each = [&](auto body) {
      for (const api::AdapterSlot slot : slots_) pipeline_->for_adapter(slot, body);
    };
    for_each([](model::LoraAdapter& adapter) { adapter.enable_training(); });
    const api::Batch trained = make_batch(api::Gradients::kAdapters);
    record_sent_bytes(trained, {}, [&] { add_indexer_losses(pipeline_->run(trained, &sink_)); });
    sample_memory();
    for (const api::AdapterSlot slot : slots_) pipeline_->finish_adapter_gradients(slot);
    gather_adapter_tensors("adapter_grad", AdapterValues::kGradients);
    // A step of rate 0 would move moments; gradients are dropped instead.
    for_each([](model::LoraAdapter& adapter) { adapter.drop_gradients(); });
  }

  void probe_parameter_gradients() {
    const api::Batch trained = make_batch(api::Gradients::kParameters);
    record_sent_bytes(trained, {}, [&] { add_indexer_losses(pipeline_->run(trained)); });
    sample_memory();
    pipeline_->finish_base_gradients();
    gather_parameter_tensors("param_grad.", engine::BaseValues::kGradients);
    pipeline_->zero_base_gradients();
  }

  void probe_training() {
    const ProbeTrain& plan = *request_.train;
    const auto num_adapters = static_cast<int64_t>(slots_.size());
    std::vector<float>& losses = add_result("train.loss", {plan.steps});
    std::vector<float>& norms = plan.parameters
                                    ? add_result("train.grad_norm", {plan.steps})
                                    : add_result("train.grad_norm", {plan.steps, num_adapters});
    const api::Batch trained =
        make_batch(plan.parameters ? api::Gradients::kParameters : api::Gradients::kAdapters);
    const std::vector base = {api::AdapterSlot::kBase};
    const std::vector<api::AdapterSlot>& stepped = plan.parameters ? base : slots_;
    const std::vector<api::AdapterSlot> sent = plan.parameters ? base : used_slots();
    std::span<float> norms_left = norms;
    for (float& loss : losses) {
      record_sent_bytes(trained, sent, [&] {
        loss = static_cast<float>(pipeline_->run(trained).loss_sum);
        sample_memory();
        step_slots(stepped, plan.adamw, norms_left.first(stepped.size()));
      });
      norms_left = norms_left.subspan(stepped.size());
    }
    if (!plan.parameters) return gather_adapter_tensors("adapter_final", AdapterValues::kWeights);
    gather_parameter_tensors("param_final.", engine::BaseValues::kMasters);
  }

  // A gradient's norm for each slot.
  void step_slots(std::span<const api::AdapterSlot> slots, const api::AdamW& adamw,
                  std::span<float> norms) {
    for (size_t k = 0; k < slots.size(); ++k)
      norms[k] = static_cast<float>(pipeline_->step(slots[k], adamw).grad_norm);
  }

  // Every trained tensor of the checkpoint, under its name there.
  void gather_parameter_tensors(const std::string& prefix, engine::BaseValues which) {
    const model::ModelWeights& weights = *pipeline_->engine().model().weights;
    for (const model::StoredTensor& tensor : weights.stored_tensors()) {
      if (!is_trained(weights, weights.table()[tensor.parameters.front()])) continue;
      gather_stored_tensor(weights, tensor, which,
                           add_result(prefix + std::string(tensor.name), dims_of(tensor.shape)));
    }
  }

  [[nodiscard]] bool is_trained(const model::ModelWeights& weights,
                                const model::Parameter& parameter) const {
    const bool is_mtp = parameter.layer == weights.config().num_layers();
    return !parameter.buffer && (!is_mtp || request_.mtp_weight != 0.0f);
  }

  // The values of its parameters, in the order of its rows.
  void gather_stored_tensor(const model::ModelWeights& weights, const model::StoredTensor& tensor,
                            engine::BaseValues which, std::span<float> out) {
    std::vector<float> values;
    for (const size_t i : tensor.parameters) {
      const model::Parameter& parameter = weights.table()[i];
      values.resize(static_cast<size_t>(parameter.whole_shape().num_elements()));
      pipeline_->gather().base_values(i, which, values);
      const int64_t cols = parameter.num_cols();
      for (const model::StoredRows& rows : tensor.rows) {
        if (rows.parameter != i) continue;
        std::copy_n(values.begin() + rows.first * cols, rows.count * cols,
                    out.begin() + rows.at * cols);
      }
    }
  }

  void probe_samples() {
    if (pipeline_->stages().size() == 1) return add_sample_results(*pipeline_);
    // A sampled row has pages of one stage, so ranks of several leave it to one that has all.
    if (!pipeline_->is_first_rank()) return;
    const std::unique_ptr<engine::Engine> whole = load_engine(spec_);
    for (const std::string& dir : options_.adapters) whole->load_adapter(dir);
    engine::Runner runner(*whole);
    add_sample_results(runner);
  }

  // Samples, and adds what came to the results.
  void add_sample_results(engine::Runner& runner) {
    const std::vector<api::SampleResult> results = engine::sample(runner, request_.samples);
    for (size_t i = 0; i < results.size(); ++i)
      add_sample_result(fmt::format("sample.{}.", i), request_.samples[i], results[i]);
  }

  void add_sample_result(const std::string& prefix, const api::SampleRequest& asked,
                         const api::SampleResult& r) {
    const auto count = static_cast<int64_t>(r.tokens.size());
    const auto prompt = static_cast<int64_t>(asked.prompt.size());
    add_numbers(prefix + "tokens", {count}, r.tokens);
    add_numbers(prefix + "logprobs", {count}, r.logprobs);
    add_result(prefix + "stop", {1})[0] = r.stopped ? 1.0f : 0.0f;
    const int64_t k = asked.topk_prompt_logprobs;
    if (asked.prompt_logprobs || k > 0)
      add_numbers(prefix + "prompt_logprobs", {prompt}, r.prompt_logprobs);
    if (k > 0) {
      add_numbers(prefix + "topk_ids", {prompt, k}, r.topk_ids);
      add_numbers(prefix + "topk_logprobs", {prompt, k}, r.topk_logprobs);
    }
  }

  template <typename T>
  void add_numbers(const std::string& name, const std::vector<int64_t>& shape,
                   const std::vector<T>& values) {
    std::vector<float>& out = add_result(name, shape);
    for (size_t i = 0; i < values.size(); ++i) out[i] = static_cast<float>(values[i]);
  }

  // One rank of each process does.
  void sample_memory() {
    if (stats_ != nullptr && stats_->is_first_here(pipeline_->comm().rank()))
      stats_->sample_memory();
  }

  // A batch that trains, and the steps behind it: what processes send for it.
  template <typename Body>
  void record_sent_bytes(const api::Batch& trained, const std::vector<api::AdapterSlot>& stepped,
                         Body body) {
    if (stats_ == nullptr || options_.stages.ranks.empty()) return body();
    std::vector<engine::SentBytes> planned = pipeline_->plan_sends(trained, stepped);
    engine::SentBytes sent;
    sent -= pipeline_->sent();
    body();
    sent += pipeline_->sent();
    std::vector<engine::SentBytes> of_ranks = gather_sent(pipeline_->comm(), sent);
    if (pipeline_->is_first_rank()) stats_->set_sent_bytes(std::move(of_ranks), std::move(planned));
  }

  // Those of which a sequence takes gradients.
  [[nodiscard]] std::vector<api::AdapterSlot> used_slots() const {
    std::vector<api::AdapterSlot> used;
    for (const api::AdapterSlot slot : slots_) {
      const auto uses = [&](const api::Sequence& sequence) { return sequence.slot == slot; };
      if (std::any_of(request_.sequences.begin(), request_.sequences.end(), uses))
        used.push_back(slot);
    }
    return used;
  }

  // Records the training passes that ran.
  void record_stats() {
    const bool trains = request_.train.has_value(), params = trains && request_.train->parameters;
    if (request_.adapter_grads || (trains && !params))
      stats_->record_stages(*pipeline_, make_batch(api::Gradients::kAdapters));
    if (request_.param_grads || params)
      stats_->record_stages(*pipeline_, make_batch(api::Gradients::kParameters));
    if (!request_.adapter_grads && !request_.param_grads && !trains)
      stats_->record_stages(*pipeline_, make_batch(api::Gradients::kNone));
  }

  const ProbeOptions& options_;
  const LoadSpec& spec_;
  const ProbeRequest& request_;
  ProbeStats* stats_;    // or none
  engine::RunPlan run_;  // which the pipeline refers to
  std::unique_ptr<engine::Runner> pipeline_;
  std::vector<api::AdapterSlot> slots_;
  api::TensorSink sink_;
};

std::vector<TensorDecl> declarations_of(const api::TensorSink& results) {
  std::vector<TensorDecl> tensors;
  for (const auto& [name, tensor] : results.tensors()) {
    Shape shape;
    for (const int64_t dim : tensor.shape) shape.push_back(dim);
    tensors.push_back({name, DType::kF32, shape});
  }
  return tensors;
}

// Both files are complete before either appears.
void write_results_and_stats(const ProbeOptions& options, const api::TensorSink& results,
                             const ProbeStats* stats) {
  SafetensorsWriter writer(options.out, declarations_of(results));
  for (const TensorDecl& tensor : writer.tensors()) {
    writer.append_f32(tensor.name, results.tensors().at(tensor.name).values);
  }
  writer.seal();
  if (stats != nullptr) write_file_atomic(options.stats, stats->json());
  writer.commit();
}

// As it loads, which the plan of stages does not depend on.
LoadSpec spec_to_load(const LoadSpec& asked, const ProbeOptions& options,
                      const ProbeRequest& request) {
  LoadSpec spec = asked;
  // Without a weight it is there for the modules that adapters may have of it.
  spec.mtp = request.mtp_weight > 0.0f  ? model::UseMtp::kAlways
             : options.adapters.empty() ? model::UseMtp::kNever
                                        : model::UseMtp::kIfThere;
  if (request.train && request.train->parameters)
    spec.weights = resolve_weights_for_full_training(spec.weights);
  return spec;
}

void check_num_microbatches(int num_microbatches, const ProbeRequest& request) {
  if (num_microbatches <= std::ssize(request.sequences)) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--microbatches: got {}, and the request has {} sequences",
                          num_microbatches, request.sequences.size()));
}

// Plans the stages, and checks that the request can run in them.
engine::PipelinePlan plan_probe_stages(const LoadSpec& asked, const StageOptions& stages,
                                       const ProbeRequest& request) {
  const engine::PipelinePlan plan = plan_stages(asked, stages);
  check_num_microbatches(plan.table.num_microbatches, request);
  if (!plan.is_whole()) check_memory_options(/*memory=*/"", asked.recompute.name, asked.offload);
  const bool parameters = request.param_grads || (request.train && request.train->parameters);
  if (parameters) check_deferred_weight_grads(plan, stages);
  return plan;
}

ProbeRequest parse_request(const std::string& json, const ProbeOptions& options) {
  return parse_probe_request(json, options.request, static_cast<int64_t>(options.adapters.size()));
}

// On ranks that are threads, or as one of those that are processes.
int answer_request(const ProbeOptions& options, const StageOptions& stages, const LoadSpec& read,
                   const ProbeRequest& request, Comm* process) {
  const LoadSpec asked = planned_for(read, request.longest());
  const engine::PipelinePlan plan = plan_probe_stages(asked, stages, request);
  const LoadSpec spec = spec_to_load(asked, options, request);
  const ProcessRanks ranks =
      process == nullptr ? ProcessRanks{.threads = plan.num_ranks()} : process_ranks(stages);
  ProbeStats stats(plan, ranks);
  ProbeStats* const wanted = options.stats.empty() ? nullptr : &stats;
  api::TensorSink results;
  const auto on_rank = [&](Comm& comm) {
    Probe(options, spec, request, wanted).run_on_rank(comm, plan, results);
  };
  process == nullptr ? run_ranks(plan.num_ranks(), on_rank) : run_ranks(*process, ranks, on_rank);
  if (process != nullptr && wanted != nullptr) stats.gather_records(*process);
  if (process == nullptr || process->rank() == 0) write_results_and_stats(options, results, wanted);
  return 0;
}

RankFacts collect_facts_of_probe(const LoadSpec& asked, const StageOptions& stages,
                                 ProbeOptions options) {
  RankFacts facts = collect_rank_facts(asked, option_table_of(options));
  add_schedule_hash(stages, facts);
  for (const std::string& dir : options.adapters)
    facts.emplace_back("--adapter (hash)", hash_adapter_or_model(dir));
  return facts;
}

// The first rank reads it.
std::string broadcast_request(Comm& comm, const ProbeOptions& options) {
  std::string json;
  if (comm.rank() == 0) json = read_file(options.request, kMaxRequestBytes);
  broadcast(comm, json);
  return json;
}

int probe_as_rank(Comm& comm, const schedule::ParallelLayout& layout, const ProbeOptions& options) {
  StageOptions stages = stages_with_layout(options.stages, layout);
  const LoadSpec asked = read_spec(options);
  check_layout(layout, asked.parsed.config);
  check_ranks_alike(comm, collect_facts_of_probe(asked, stages, options));
  const ProbeRequest request = parse_request(broadcast_request(comm, options), options);
  if (!(request.train && request.train->parameters)) choose_weight_sharers(comm, stages);
  return answer_request(options, stages, asked, request, &comm);
}

}  // namespace

int run_probe(const ProbeOptions& options) {
  if (!options.stages.ranks.empty()) {
    return run_as_rank(options.stages, [&](Comm& comm, const schedule::ParallelLayout& layout) {
      return probe_as_rank(comm, layout, options);
    });
  }
  check_started_alone();
  const ProbeRequest request = parse_request(read_file(options.request, kMaxRequestBytes), options);
  return answer_request(options, options.stages, read_spec(options), request, nullptr);
}

}  // namespace strata::apps
