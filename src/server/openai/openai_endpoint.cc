// SPDX-License-Identifier: Apache-2.0
#include "server/openai/openai_endpoint.h"

#include <fmt/format.h>

#include <utility>

#include "base/clock.h"
#include "server/crypto.h"
#include "server/http/body_stream.h"
#include "server/json.h"
#include "server/openai/answer_json.h"
#include "server/openai/chat_body.h"
#include "server/openai/completion_body.h"
#include "server/openai/openai_error.h"
#include "server/protocol/json_body.h"

namespace strata::server {
namespace {

constexpr size_t kReadAtOnce = 8 << 10;  // bytes of a body; templates and tokenizers take longer
constexpr size_t kWriteAtOnce = 2048;    // tokens of an answer; a millisecond or two of JSON
constexpr size_t kMostName = 1024;       // bytes of a model's

// What `run` throws is the response.
void answer_openai(const Respond& respond, const std::function<void()>& run) {
  answer_faults("openai", respond, [&] {
    std::exception_ptr thrown;
    try {
      return run();
    } catch (const OpenAiFault&) {
      thrown = std::current_exception();
    } catch (const FieldFault&) {
      thrown = std::current_exception();
    }
    respond(openai_fault(thrown));
  });
}

[[noreturn]] void fail_model(const std::string& name, const std::string& why) {
  throw OpenAiFault(ErrorCode::kNotFound,
                    fmt::format("The model `{}` does not exist or you do not have access to it. {}",
                                name.substr(0, 200), why),
                    "model", "model_not_found");
}

std::string fingerprint_of(const std::string& build, const LiveSampler& weights,
                           const api::BaseInfo& base) {
  return "fp_" +
         to_hex(sha256(build + "\n" + base.dir + "\n" + weights.snapshot.text)).substr(0, 12);
}

}  // namespace

struct OpenAiEndpoint::Call {
  Request request;
  Respond respond;
  bool is_chat = false;
  size_t num_bytes = 0;
  std::unique_ptr<JsonBody> json = nullptr;  // until it is read
  AnswerHead head = {};
  LiveSampler weights = {};
  const ServedText* text = nullptr;
  const api::BaseInfo* base = nullptr;
  std::shared_ptr<AnswerOrder> order = std::make_shared<AnswerOrder>();
  std::vector<api::RequestId> samples = {};  // that were submitted
};

// A whole answer, as its samples end.
struct OpenAiEndpoint::Gathering {
  std::shared_ptr<Call> call;
  std::vector<api::SampleOutput> outputs = {};
  size_t left = 0;
  bool is_over = false;  // one of them failed
};

// A streamed one, which its client may leave.
struct OpenAiEndpoint::Streaming {
  std::shared_ptr<Call> call;
  AnswerStream answer;
  size_t left = 0;
  std::shared_ptr<BodyStream> body = std::make_shared<BodyStream>();
  bool is_over = false;  // nothing more is told
};

void OpenAiEndpoint::in_parts(const Respond& respond, const std::string& tenant, bool is_long,
                              std::function<void()> work, std::function<void()> then) {
  if (!is_long || !parts_.parse) {
    return answer_openai(respond, [&] {
      work();
      then();
    });
  }
  parts_.parse(tenant, [this, respond, work = std::move(work), then = std::move(then)] {
    bool done = false;
    answer_openai(respond, [&] {
      work();
      done = true;
    });
    if (done) parts_.back([respond, then] { answer_openai(respond, then); });
  });
}

void OpenAiEndpoint::answer(Request&& request, const Respond& respond, bool is_chat) {
  auto call = std::make_shared<Call>(Call{std::move(request), respond, is_chat});
  call->num_bytes = call->request.body.size();
  in_parts(
      respond, call->request.tenant, call->num_bytes > kReadAtOnce,
      [call] {
        call->json = std::make_unique<JsonBody>(call->request.body,
                                                call->is_chat ? "chat.completions" : "completions",
                                                call->request.body_share.get());
        call->request.free_body();
      },
      [this, call] { find_weights(call); });
}

void OpenAiEndpoint::find_weights(const std::shared_ptr<Call>& call) {
  const Fields body = call->json->root();
  const std::string name = body.string("model");
  if (name.empty() || name.size() > kMostName) fail_model(name, "");
  call->request.note(name);
  try {
    call->weights = parts_.service.find_weights(call->request.tenant, name);
  } catch (const Error& error) {
    if (error.code != ErrorCode::kNotFound) {
      throw OpenAiFault(error.code, fmt::format("model: {}", error.what()), "model", "");
    }
    fail_model(name, error.what());
  }
  const auto index = static_cast<size_t>(call->weights.base);
  call->base = &parts_.bases.at(index);
  if (!parts_.texts.at(index)) {
    throw OpenAiFault(ErrorCode::kInvalidArgument,
                      "model: it has no tokenizer.json, so it is sampled by token ids alone, over "
                      "the Tinker protocol",
                      "model", "unsupported_model");
  }
  call->text = &*parts_.texts.at(index);
  call->head = {.id = (call->is_chat ? "chatcmpl-" : "cmpl-") + random_id(),
                .created = static_cast<int64_t>(wall_seconds()),
                .model = name,
                .fingerprint = fingerprint_of(call->text->build, call->weights, *call->base)};
  in_parts(
      call->respond, call->request.tenant, call->num_bytes > kReadAtOnce,
      [call] {
        const auto read = call->is_chat ? read_chat : read_completion;
        *call->order = read(call->json->root(), *call->text, *call->base, random_seed());
        call->json.reset();
      },
      [this, call] { submit(call); });
}

void OpenAiEndpoint::cancel(const std::vector<api::RequestId>& samples, const std::string& reason) {
  for (const api::RequestId& id : samples) parts_.service.cancel(id, reason);
}

bool OpenAiEndpoint::begin(const std::shared_ptr<Call>& call,
                           const std::function<void(size_t, const api::Event&)>& hear) {
  for (size_t i = 0; i < call->order->samples.size(); ++i) {
    Service::Sampling begun =
        parts_.service.sample(call->request, call->weights, call->order->samples[i],
                              [hear, i](const api::Event& event) { hear(i, event); });
    if (begun.refusal) {
      cancel(call->samples, "another prompt of the request was refused");
      call->respond(std::move(*begun.refusal));
      return false;
    }
    call->samples.push_back(begun.request);
  }
  return true;
}

void OpenAiEndpoint::submit(const std::shared_ptr<Call>& call) {
  AnswerOrder& order = *call->order;
  if (order.telling.stream) return stream(call);
  auto gathering = std::make_shared<Gathering>(Gathering{.call = call});
  gathering->outputs.resize(order.samples.size());
  gathering->left = order.samples.size();
  const bool begun = begin(call, [this, gathering](size_t sample, const api::Event& event) {
    gather(gathering, sample, event);
  });
  if (!begun) {
    gathering->is_over = true;
  } else if (call->request.on_hang_up) {
    *call->request.on_hang_up = [this, samples = call->samples] {
      cancel(samples, "the client hung up");
    };
  }
}

void OpenAiEndpoint::gather(const std::shared_ptr<Gathering>& gathering, size_t sample,
                            const api::Event& event) {
  const auto* outcome = std::get_if<api::Outcome>(&event.what);
  if (outcome == nullptr || gathering->is_over) return;
  if (const auto* failure = std::get_if<api::Failure>(outcome)) {
    gathering->is_over = true;
    cancel(gathering->call->samples, "another sample of the request failed");
    const int status = failure->category == api::FaultCategory::kUser ? 400 : 500;
    return gathering->call->respond(openai_error(status, failure->message));
  }
  gathering->outputs[sample] = std::get<api::SampleOutput>(*outcome);
  if (--gathering->left == 0) respond_whole(gathering);
}

void OpenAiEndpoint::respond_whole(const std::shared_ptr<Gathering>& gathering) {
  const std::shared_ptr<Call>& call = gathering->call;
  size_t tokens = 0;
  for (const api::SampleOutput& output : gathering->outputs) {
    tokens += output.prompt_logprobs.size() + output.prompt_topk.ids.size();
    for (const auto& sequence : output.sequences)
      tokens += sequence.tokens.size() + sequence.topk.ids.size();
  }
  auto response = std::make_shared<Response>();
  in_parts(
      call->respond, call->request.tenant, tokens > kWriteAtOnce,
      [gathering, response] {
        const Call& of = *gathering->call;
        *response =
            json_response(200, whole_answer(of.head, *of.order, *of.text, gathering->outputs));
      },
      [call, response] { call->respond(std::move(*response)); });
}

void OpenAiEndpoint::stream(const std::shared_ptr<Call>& call) {
  for (api::Sample& sample : call->order->samples) sample.tells_tokens = true;
  auto streaming = std::make_shared<Streaming>(
      Streaming{.call = call,
                .answer = AnswerStream(call->head, call->order, *call->text),
                .left = call->order->samples.size()});
  const bool begun = begin(call, [this, streaming](size_t sample, const api::Event& event) {
    tell(*streaming, sample, event);
  });
  if (!begun) {
    streaming->is_over = true;
    return;
  }
  streaming->body->on_close(
      [this, samples = call->samples] { cancel(samples, "the client hung up"); });
  Response response;
  response.content_type = "text/event-stream";
  response.headers.push_back({"cache-control", "no-cache"});
  response.stream = streaming->body;
  call->respond(std::move(response));
}

void OpenAiEndpoint::tell(Streaming& streaming, size_t sample, const api::Event& event) {
  if (streaming.is_over) return;
  if (const auto* told = std::get_if<api::RowTokens>(&event.what)) {
    const std::string text = streaming.answer.tell(sample, *told);
    if (text.empty() || streaming.body->push(text)) return;
    streaming.is_over = true;
    return cancel(streaming.call->samples, "the client reads too slowly, or hung up");
  }
  const auto* outcome = std::get_if<api::Outcome>(&event.what);
  if (outcome == nullptr) return;
  const auto* failure = std::get_if<api::Failure>(outcome);
  if (failure == nullptr) streaming.answer.ended(std::get<api::SampleOutput>(*outcome));
  if (failure == nullptr && --streaming.left > 0) return;
  streaming.is_over = true;
  if (failure != nullptr) {
    cancel(streaming.call->samples, "another sample of the request failed");
    const int status = failure->category == api::FaultCategory::kUser ? 400 : 500;
    streaming.body->push(AnswerStream::fault(status, failure->message));
  } else {
    streaming.body->push(streaming.answer.end());
  }
  streaming.body->finish();
}

Json OpenAiEndpoint::model_json(const std::string& id, const api::BaseInfo& base) const {
  return JsonObject{{"id", id},
                    {"object", "model"},
                    {"created", parts_.created},
                    {"owned_by", "strata"},
                    {"max_model_len", base.max_context}};
}

Response OpenAiEndpoint::list_models() const {
  JsonArray models;
  for (const BaseName& name : parts_.names.names()) {
    models.add(model_json(name.name, parts_.bases.at(static_cast<size_t>(name.model))));
  }
  return json_response(200, JsonObject{{"object", "list"}, {"data", models}}.text());
}

Response OpenAiEndpoint::get_model(const Request& request) const {
  const std::string& name = request.parts.at(0);
  try {
    const LiveSampler weights = parts_.service.find_weights(request.tenant, name);
    return json_response(
        200, model_json(name, parts_.bases.at(static_cast<size_t>(weights.base))).text());
  } catch (const Error& error) {
    return openai_error(404,
                        fmt::format("The model `{}` does not exist or you do not have access "
                                    "to it. {}",
                                    name.substr(0, 200), error.what()),
                        "model", "model_not_found");
  }
}

void OpenAiEndpoint::add_routes(Router& router) {
  const auto get = [&](const char* pattern, PlainHandler handler) {
    router.add({.method = "GET",
                .pattern = pattern,
                .handler = at_once(std::move(handler)),
                .scope = Scope::kRead,
                .effect = Effect::kReads});
  };
  get("/v1/models", [this](const Request&) { return list_models(); });
  get("/v1/models/{*}", [this](const Request& request) { return get_model(request); });
  const auto post = [&](const char* pattern, bool is_chat) {
    router.add({.method = "POST",
                .pattern = pattern,
                .body = BodyKind::kJson,
                .handler =
                    [this, is_chat](Request&& request, const Respond& respond) {
                      answer(std::move(request), respond, is_chat);
                    },
                .size = BodySize::kSample,
                .scope = Scope::kSample,
                .watches_peer = true});
  };
  post("/v1/chat/completions", true);
  post("/v1/completions", false);
}

}  // namespace strata::server
