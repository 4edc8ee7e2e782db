// SPDX-License-Identifier: Apache-2.0
#include "server/openai/openai_endpoint.h"

#include <fmt/format.h>

#include <utility>

#include "base/clock.h"
#include "base/crypto.h"
#include "server/openai/answer_json.h"
#include "server/openai/chat_body.h"
#include "server/openai/completion_body.h"
#include "server/openai/endpoints_of_others.h"
#include "server/openai/openai_error.h"
#include "server/openai/sampling_fields.h"
#include "server/tinker/refusals.h"
#include "server/tinker/service/refusals.h"
#include "text/json_body.h"
#include "text/parsed_budget.h"

namespace strata::server {
namespace {

constexpr size_t kReadAtOnce = 8 << 10;  // bytes of a body; templates and tokenizers take longer
constexpr int64_t kWriteAtOnce = 2048;   // tokens of an answer; a millisecond or two of JSON
// Samples of a request, and tokens of their prompts, that are submitted in one turn.
constexpr size_t kSubmitAtOnce = 32;
constexpr size_t kSubmitTokens = 16384;
constexpr const char* kHungUp = "the client hung up, or reads too slowly";
constexpr size_t kMostName = 1024;  // bytes of a model's

// What `run` throws is the response.
void run_answering_openai_faults(const Respond& respond, const std::function<void()>& run) {
  run_answering_faults("openai", respond, [&] {
    std::exception_ptr thrown;
    try {
      return run();
    } catch (const OpenAiFault&) {
      thrown = std::current_exception();
    } catch (const text::FieldFault&) {
      thrown = std::current_exception();
    }
    respond(openai_fault_response(thrown));
  });
}

[[noreturn]] void throw_model_not_found(const std::string& name, const std::string& why) {
  throw OpenAiFault(ErrorCode::kNotFound,
                    fmt::format("The model `{}` does not exist or you do not have access to it. {}",
                                name.substr(0, 200), why),
                    "model", "model_not_found");
}

int status_of_failure(const api::Failure& failure) {
  return failure.category == api::FaultCategory::kUser ? 400 : 500;
}

std::string fingerprint_of(const std::string& build, const LiveSampler& weights,
                           const api::BaseInfo& base) {
  return "fp_" +
         to_hex(sha256(build + "\n" + base.dir + "\n" + weights.snapshot.text)).substr(0, 12);
}

size_t bytes_until_submitted(const AnswerOrder& order) {
  const auto ids = static_cast<size_t>(order.prompt_tokens) * sizeof(int32_t);
  return order.echo ? order.kept : order.kept + ids;
}

// Whoever tells prompts again keeps them.
api::Sample sample_to_submit(AnswerOrder& order, size_t index) {
  api::Sample& kept = order.samples[index];
  if (order.echo) return kept;
  std::vector<int32_t> prompt = std::exchange(kept.prompt, {});
  api::Sample sample = kept;
  sample.prompt = std::move(prompt);
  return sample;
}

// Tokens that an answer tells, with the most likely ones of each.
int64_t num_emitted(const std::vector<api::SampleOutput>& outputs) {
  int64_t count = 0;
  for (const api::SampleOutput& output : outputs) {
    count += std::ssize(output.prompt_logprobs) + std::ssize(output.prompt_topk.ids);
    for (const api::SampledSequence& sequence : output.sequences)
      count += std::ssize(sequence.tokens) + std::ssize(sequence.topk.ids);
  }
  return count;
}

Response event_stream_response(std::shared_ptr<BodyStream> body) {
  Response response;
  response.content_type = "text/event-stream";
  response.headers.push_back({"cache-control", "no-cache"});
  response.stream = std::move(body);
  return response;
}

}  // namespace

struct OpenAiEndpoint::Call {
  Request request;
  Respond respond;
  bool is_chat = false;
  size_t num_bytes = 0;
  std::unique_ptr<text::JsonBody> json = nullptr;  // until it is read
  AnswerHead head = {};
  LiveSampler weights = {};
  const ServedText* text = nullptr;
  const api::BaseInfo* base = nullptr;
  std::shared_ptr<AnswerOrder> order = std::make_shared<AnswerOrder>();
  std::vector<api::RequestId> samples = {};  // that were submitted
  bool stops = false;                        // no more of them is
  bool is_answered = false;
  std::optional<text::ParsedBudget> made = std::nullopt;  // what is made of the body

  // Frees the body's bytes once they are parsed.
  void parse_body() {
    const char* where = is_chat ? "chat.completions" : "completions";
    json = std::make_unique<text::JsonBody>(request.body, where, request.charge.get());
    if (request.charge != nullptr && request.charge->held(Use::kBody) > 0)
      made.emplace(*request.charge, where);
    request.free_body();
  }

  // Frees the body once it is read.
  void take_order() {
    const auto read = is_chat ? read_chat : read_completion;
    *order = read(json->root(), *text, *base, random_seed(), [this](size_t bytes) { hold(bytes); });
    json.reset();
    hold(bytes_until_submitted(*order));
  }

  // The head of an answer: its id, when it was made, and its weights, which the request calls
  // `model`.
  void set_head(const std::string& model) {
    head = {.id = (is_chat ? "chatcmpl-" : "cmpl-") + random_id(),
            .created = static_cast<int64_t>(wall_seconds()),
            .model = model,
            .fingerprint = fingerprint_of(text->build, weights, *base)};
  }

  void fit_answers_to(const structured::GrammarStore::Held& grammar) {
    const std::vector<std::string>& passed_over = grammar->warnings();
    order->warnings.insert(order->warnings.end(), passed_over.begin(), passed_over.end());
    for (api::Sample& sample : order->samples) sample.grammar = grammar;
  }

  void hold(size_t bytes) {
    if (made) made->resize_hold(bytes);
  }
  // The first response counts.
  void give(Response response) {
    if (!std::exchange(is_answered, true)) respond(std::move(response));
  }
  [[nodiscard]] static Respond giver(const std::shared_ptr<Call>& call) {
    return [call](Response response) { call->give(std::move(response)); };
  }
};

// A whole answer, as its samples end.
struct OpenAiEndpoint::Gathering {
  std::shared_ptr<Call> call;
  std::vector<api::SampleOutput> outputs = {};
  size_t left = 0;
};

// A streamed one, which its client may leave.
struct OpenAiEndpoint::Streaming {
  std::shared_ptr<Call> call;
  std::shared_ptr<StreamWriter> writer;
  size_t left = 0;
  bool is_over = false;  // nothing more is told
};

void OpenAiEndpoint::run_call_work(const Respond& respond, const std::string& tenant, bool is_long,
                                   std::function<void()> work, std::function<void()> then) {
  if (!is_long || !parts_.parse) {
    return run_answering_openai_faults(respond, [&] {
      work();
      then();
    });
  }
  parts_.parse(tenant, [this, respond, work = std::move(work), then = std::move(then)] {
    run_answering_openai_faults(respond, [&] {
      work();
      parts_.back([respond, then] { run_answering_openai_faults(respond, then); });
    });
  });
}

void OpenAiEndpoint::start_request(bool is_chat, Request&& request, const Respond& respond) {
  auto call = std::make_shared<Call>(Call{std::move(request), respond, is_chat});
  call->num_bytes = call->request.body.size();
  run_call_work(
      Call::giver(call), call->request.tenant, call->num_bytes > kReadAtOnce,
      [call] { call->parse_body(); }, [this, call] { start_order(call); });
}

// What is no fault of the name's, as a database that is away, is thrown on.
LiveSampler OpenAiEndpoint::find_weights(const std::string& tenant, const std::string& name) const {
  try {
    return parts_.service.make_sampler_by_name(tenant, name);
  } catch (const Error& error) {
    if (error.code == ErrorCode::kNotFound) throw_model_not_found(name, error.what());
    if (error.code != ErrorCode::kInvalidArgument) throw;
    throw OpenAiFault(error.code, fmt::format("model: {}", error.what()), "model", "");
  }
}

const ServedText& OpenAiEndpoint::require_text(size_t base, const std::string& name) const {
  if (const std::optional<ServedText>& text = parts_.texts.at(base)) {
    const bool is_checkpoint = name.starts_with("tinker://");
    const BaseName* served = is_checkpoint ? nullptr : parts_.names.find(name);
    const auto own = text->of_adapters.find(served == nullptr ? "" : served->adapter);
    return own == text->of_adapters.end() ? *text : *own->second;
  }
  throw OpenAiFault(ErrorCode::kInvalidArgument,
                    "model: it has no tokenizer.json, so it is sampled by token ids alone, over "
                    "the Tinker protocol",
                    "model", "unsupported_model");
}

void OpenAiEndpoint::resolve_model(Call& call) const {
  const text::Fields body = call.json->root();
  const std::string name = body.string("model");
  if (name.empty() || name.size() > kMostName) throw_model_not_found(name, "");
  call.request.note(name);
  call.weights = find_weights(call.request.tenant, name);
  const auto index = static_cast<size_t>(call.weights.base);
  call.base = &parts_.bases.at(index);
  call.text = &require_text(index, name);
  call.set_head(name);
}

void OpenAiEndpoint::start_order(const std::shared_ptr<Call>& call) {
  resolve_model(*call);
  run_call_work(
      Call::giver(call), call->request.tenant, call->num_bytes > kReadAtOnce,
      [call] { call->take_order(); }, [this, call] { apply_constraint(call); });
}

void OpenAiEndpoint::apply_constraint(const std::shared_ptr<Call>& call) {
  if (!call->order->constraint) return start_answer(call);
  const std::optional<structured::GrammarStore::Held> held =
      grammars_.find(call->request.tenant, *call->text, *call->order->constraint);
  if (held) {
    call->fit_answers_to(*held);
    return start_answer(call);
  }
  // Until it has been submitted, a client that leaves is seen here.
  if (call->request.on_hang_up) *call->request.on_hang_up = make_hang_up_canceller(call);
  if (!parts_.compile) return compile_constraint(call);
  if (!parts_.compile(call->request.tenant, [this, call] { compile_constraint(call); }))
    call->give(refuse(kTooManySchemas));
}

// The thread for it.
void OpenAiEndpoint::compile_constraint(const std::shared_ptr<Call>& call) {
  if (call->stops) return call->give(openai_error_response(400, kHungUp));
  run_answering_openai_faults(Call::giver(call), [&] {
    const structured::GrammarStore::Held held = grammars_.compile(
        call->request.tenant, *call->text, call->base->vocab_size, *call->order->constraint);
    const auto start = [this, call, held] {
      run_answering_openai_faults(Call::giver(call), [&] {
        if (held == nullptr) return call->give(refuse(kNoSpaceForSchema));
        call->fit_answers_to(held);
        start_answer(call);
      });
    };
    if (!parts_.back) return start();
    parts_.back(start);
  });
}

void OpenAiEndpoint::cancel_samples(Call& call, const std::string& reason) {
  call.stops = true;
  for (const api::RequestId& id : call.samples) parts_.service.cancel(id, reason);
}

// For who is told that the client left; it keeps no call.
std::function<void()> OpenAiEndpoint::make_hang_up_canceller(const std::shared_ptr<Call>& call) {
  return [this, of = std::weak_ptr<Call>(call)] {
    if (const std::shared_ptr<Call> left = of.lock()) cancel_samples(*left, kHungUp);
  };
}

void OpenAiEndpoint::start_answer(const std::shared_ptr<Call>& call) {
  if (call->request.on_hang_up) *call->request.on_hang_up = make_hang_up_canceller(call);
  if (call->order->telling.stream) return begin_streaming(call);
  begin_gathering(call);
}

void OpenAiEndpoint::submit_samples(const std::shared_ptr<Call>& call, const Hear& hear,
                                    const std::function<void()>& then) {
  size_t tokens = 0;
  const size_t first = call->samples.size();
  for (size_t i = first; i < call->order->samples.size(); ++i) {
    if (call->stops) return call->give(openai_error_response(400, kHungUp));
    if (parts_.back && (i - first == kSubmitAtOnce || tokens > kSubmitTokens))
      return submit_rest_in_next_turn(call, hear, then);
    tokens += call->order->samples[i].prompt.size();
    if (!submit_call_sample(call, i, hear)) return;
  }
  call->hold(call->order->kept);
  then();
}

void OpenAiEndpoint::submit_rest_in_next_turn(const std::shared_ptr<Call>& call, const Hear& hear,
                                              const std::function<void()>& then) {
  parts_.back([this, call, hear, then] {
    run_answering_openai_faults(Call::giver(call), [&] { submit_samples(call, hear, then); });
  });
}

bool OpenAiEndpoint::submit_call_sample(const std::shared_ptr<Call>& call, size_t sample,
                                        const Hear& hear) {
  // Also where it throws.
  const std::shared_ptr<void> unless_begun(nullptr, [&](void*) {
    if (call->samples.size() <= sample)
      cancel_samples(*call, "another prompt of the request was refused");
  });
  Service::Sampling begun = parts_.service.submit_sample(
      call->request, call->weights, sample_to_submit(*call->order, sample),
      [hear, sample](const api::Event& event) { hear(sample, event); });
  if (!begun.refusal) {
    call->samples.push_back(begun.request);
    return true;
  }
  call->give(std::move(*begun.refusal));
  return false;
}

void OpenAiEndpoint::fail_call(Call& call, const api::Failure& failure) {
  cancel_samples(call, "another sample of the request failed");
  call.give(openai_error_response(status_of_failure(failure), failure.message));
}

bool OpenAiEndpoint::admit_answer(Call& call, int64_t bytes) const {
  Charge& charge = *call.request.charge;
  if (parts_.service.futures().hold_dropping_delivered(charge, bytes)) return true;
  call.give(over_budget_response(charge, bytes));
  return false;
}

void OpenAiEndpoint::begin_gathering(const std::shared_ptr<Call>& call) {
  if (!admit_answer(*call, most_answer_bytes(*call->order))) return;
  auto gathering = std::make_shared<Gathering>(Gathering{.call = call});
  gathering->outputs.resize(call->order->samples.size());
  gathering->left = call->order->samples.size();
  submit_samples(
      call,
      [this, gathering](size_t sample, const api::Event& event) {
        handle_gathered_event(gathering, sample, event);
      },
      [] {});
}

void OpenAiEndpoint::handle_gathered_event(const std::shared_ptr<Gathering>& gathering,
                                           size_t sample, const api::Event& event) {
  const auto* outcome = std::get_if<api::Outcome>(&event.what);
  Call& call = *gathering->call;
  if (outcome == nullptr || call.is_answered) return;
  if (const auto* failure = std::get_if<api::Failure>(outcome)) return fail_call(call, *failure);
  gathering->outputs[sample] = std::get<api::SampleOutput>(*outcome);
  if (--gathering->left == 0) respond_whole_answer(gathering);
}

void OpenAiEndpoint::respond_whole_answer(const std::shared_ptr<Gathering>& gathering) {
  const std::shared_ptr<Call>& call = gathering->call;
  const bool is_long = num_emitted(gathering->outputs) > kWriteAtOnce;
  auto response = std::make_shared<Response>();
  run_call_work(
      Call::giver(call), call->request.tenant, is_long,
      [gathering, response] {
        const Call& of = *gathering->call;
        *response =
            json_response(200, whole_answer_json(of.head, *of.order, *of.text, gathering->outputs));
      },
      [gathering, response] { gathering->call->give(std::move(*response)); });
}

Elsewhere OpenAiEndpoint::stream_executor_for(const Call& call) const {
  if (!parts_.parse || !takes_long_to_write(*call.order)) return {};
  return {.run = [this, tenant = call.request.tenant](
                     std::function<void()> job) { parts_.parse(tenant, std::move(job)); },
          .back = parts_.back};
}

std::shared_ptr<OpenAiEndpoint::Streaming> OpenAiEndpoint::make_streaming(
    const std::shared_ptr<Call>& call) const {
  return std::make_shared<Streaming>(
      Streaming{.call = call,
                .writer = std::make_shared<StreamWriter>(
                    AnswerStream(call->head, call->order, *call->text), stream_executor_for(*call)),
                .left = call->order->samples.size()});
}

void OpenAiEndpoint::begin_streaming(const std::shared_ptr<Call>& call) {
  for (api::Sample& sample : call->order->samples) sample.streams_tokens = true;
  if (!admit_answer(*call, call->order->num_choices() * kChoiceBytes)) return;
  const std::shared_ptr<Streaming> streaming = make_streaming(call);
  // Who is told of the samples keeps the call; the body, which the call's answer holds, does not.
  streaming->writer->body()->on_close(make_hang_up_canceller(call));
  submit_samples(
      call,
      [this, streaming](size_t sample, const api::Event& event) {
        handle_streamed_event(*streaming, sample, event);
      },
      [call, streaming] { call->give(event_stream_response(streaming->writer->body())); });
}

void OpenAiEndpoint::handle_streamed_event(Streaming& streaming, size_t sample,
                                           const api::Event& event) {
  if (streaming.is_over) return;
  StreamWriter& writer = *streaming.writer;
  if (const auto* told = std::get_if<api::RowTokens>(&event.what))
    return writer.push(sample, *told);
  const auto* outcome = std::get_if<api::Outcome>(&event.what);
  if (outcome == nullptr) return;
  if (const auto* failure = std::get_if<api::Failure>(outcome))
    return end_failed_stream(streaming, *failure);
  writer.note_ended(std::get<api::SampleOutput>(*outcome));
  if (--streaming.left > 0) return;
  streaming.is_over = true;
  writer.finish();
}

// What was submitted is cancelled; it is also the answer where there is no response yet.
void OpenAiEndpoint::end_failed_stream(Streaming& streaming, const api::Failure& failure) {
  streaming.is_over = true;
  streaming.writer->fail(status_of_failure(failure), failure.message);
  fail_call(*streaming.call, failure);
}

Json OpenAiEndpoint::model_json(const std::string& id, const api::BaseInfo& base) const {
  return JsonObject{{"id", id},
                    {"object", "model"},
                    {"created", parts_.created},
                    {"owned_by", "strata"},
                    {"max_model_len", base.max_context}};
}

Response OpenAiEndpoint::list_models(const Request& request) const {
  JsonArray models;
  for (const BaseName& name : parts_.names.names()) {
    if (!parts_.service.may_sample(request.tenant, name)) continue;
    models.add(model_json(name.name, parts_.bases.at(static_cast<size_t>(name.model))));
  }
  return json_response(200, JsonObject{{"object", "list"}, {"data", models}}.text());
}

Response OpenAiEndpoint::get_model(const Request& request) const {
  const std::string& name = request.parts.at(0);
  const LiveSampler weights = find_weights(request.tenant, name);
  return json_response(200,
                       model_json(name, parts_.bases.at(static_cast<size_t>(weights.base))).text());
}

void OpenAiEndpoint::answer_plain(Plain run, const Request& request, const Respond& respond) const {
  run_answering_openai_faults(respond, [&] { respond((this->*run)(request)); });
}

std::span<const Endpoint<OpenAiEndpoint>> OpenAiEndpoint::endpoints() {
  using Self = OpenAiEndpoint;
  static constexpr Endpoint<Self> kRows[] = {
      {.method = "GET",
       .path = "/v1/models",
       .run = answer<&Self::list_models>,
       .body = BodyKind::kNone,
       .scope = Scope::kRead,
       .effect = Effect::kReads},
      {.method = "GET",
       .path = "/v1/models/{*}",
       .run = answer<&Self::get_model>,
       .body = BodyKind::kNone,
       .scope = Scope::kRead,
       .effect = Effect::kReads},
      {.path = "/v1/chat/completions",
       .run = handle_request</*is_chat=*/true>,
       .scope = Scope::kSample,
       .size = BodySize::kSample,
       .watches_peer = true},
      {.path = "/v1/completions",
       .run = handle_request</*is_chat=*/false>,
       .scope = Scope::kSample,
       .size = BodySize::kSample,
       .watches_peer = true},
  };
  return kRows;
}

void OpenAiEndpoint::add_routes(Router& router) {
  for (const Endpoint<OpenAiEndpoint>& endpoint : endpoints())
    add_endpoint(router, "", endpoint, *this);
  add_endpoints_of_others(router, parts_.service);
}

}  // namespace strata::server
