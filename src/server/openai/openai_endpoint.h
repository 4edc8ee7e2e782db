// SPDX-License-Identifier: Apache-2.0
// OpenAiEndpoint: /v1/models, /v1/chat/completions and /v1/completions, on the keys, limits and
// weights of the Tinker protocol: an answer is a sample of the continuous batch like any other, of
// a base model, an adapter that is served, or a checkpoint's path. I/O thread only.
//   OpenAiEndpoint openai({service, names, bases, texts, parse, back});  openai.add_routes(router);
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "api/work.h"
#include "server/http/endpoint.h"
#include "server/http/message.h"
#include "server/openai/answer_grammars.h"
#include "server/openai/served_text.h"
#include "server/openai/stream_writer.h"
#include "server/tinker/base_names.h"
#include "server/tinker/service/service.h"

namespace strata::server {

// What the endpoint works on; all outlive it.
struct OpenAiParts {
  Service& service;
  const BaseNames& names;
  std::vector<api::BaseInfo> bases;              // by BaseNames' model index
  std::vector<std::optional<ServedText>> texts;  // likewise
  int64_t created = 0;                           // of the models, as clients are told: the start
  // Runs what takes long, of a tenant, on another thread; and what follows it on the I/O thread.
  // Without them it is run at once.
  std::function<void(const std::string& tenant, std::function<void()>)> parse = {};
  std::function<void(std::function<void()>)> back = {};
  // Grammars of answers that have to fit one; null: all are refused.
  structured::GrammarStore* grammars = nullptr;
  // Runs what compiles one, of a tenant, on a thread for it; false where as many wait as may.
  // Without it that is run at once.
  std::function<bool(const std::string& tenant, std::function<void()>)> compile = {};
};

class OpenAiEndpoint {
 public:
  explicit OpenAiEndpoint(OpenAiParts parts)
      : parts_(std::move(parts)), grammars_(parts_.grammars) {}

  void add_routes(Router& router);

  // What asample's `structured_outputs` is to the service (ServiceParts::fit).
  void fit_sample(const std::string& tenant, size_t base, const std::string& outputs,
                  const Respond& respond,
                  const std::function<void(structured::GrammarStore::Held)>& then);

 private:
  struct Call;
  struct Gathering;
  struct Streaming;
  // Every call, a row each.
  static std::span<const Endpoint<OpenAiEndpoint>> endpoints();
  // A call's member as its row has it; what it throws has OpenAI's form.
  using Plain = Response (OpenAiEndpoint::*)(const Request&) const;
  template <Plain run>
  static void answer(OpenAiEndpoint& openai, Request&& request, const Respond& respond) {
    openai.answer_plain(run, request, respond);
  }
  void answer_plain(Plain run, const Request& request, const Respond& respond) const;
  template <bool is_chat>
  static void handle_request(OpenAiEndpoint& openai, Request&& request, const Respond& respond) {
    openai.start_request(is_chat, std::move(request), respond);
  }
  Response list_models(const Request& request) const;
  Response get_model(const Request& request) const;
  Json model_json(const std::string& id, const api::BaseInfo& base) const;
  void start_request(bool is_chat, Request&& request, const Respond& respond);
  [[nodiscard]] LiveSampler find_weights(const std::string& tenant, const std::string& name) const;
  // The texts of a base, or of an adapter that is served by this name.
  [[nodiscard]] const ServedText& require_text(size_t base, const std::string& name) const;
  // What the body asks for: its model, the weights and texts of that, and the answer's head.
  void resolve_model(Call& call) const;
  // Makes samples of the body, which it frees, and submits them.
  void start_order(const std::shared_ptr<Call>& call);
  // Gives the samples the grammar that the order's constraint asks for, or answers why there is
  // none; then starts the answer.
  void apply_constraint(const std::shared_ptr<Call>& call);
  // Compiles the grammar, on the thread for that, and starts the answer with it.
  void compile_constraint(const std::shared_ptr<Call>& call);
  void start_answer(const std::shared_ptr<Call>& call);
  using Hear = std::function<void(size_t sample, const api::Event& event)>;
  // Submits every sample of the order, in turns; then runs `then`. It has been answered instead
  // where one was refused, or the client left.
  void submit_samples(const std::shared_ptr<Call>& call, const Hear& hear,
                      const std::function<void()>& then);
  void submit_rest_in_next_turn(const std::shared_ptr<Call>& call, const Hear& hear,
                                const std::function<void()>& then);
  // False where the sample was refused: then the call has its answer, and its others are canceled.
  bool submit_call_sample(const std::shared_ptr<Call>& call, size_t sample, const Hear& hear);
  // What was submitted is cancelled, and no more is.
  void cancel_samples(Call& call, const std::string& reason);
  [[nodiscard]] std::function<void()> make_hang_up_canceller(const std::shared_ptr<Call>& call);
  // Cancels the call's other samples, and answers with the failure.
  void fail_call(Call& call, const api::Failure& failure);
  // Whether the call's request holds so many bytes for its answer from now on; else it has been
  // answered.
  [[nodiscard]] bool admit_answer(Call& call, int64_t bytes) const;
  // Submits the samples; the answer is given when all of them are done.
  void begin_gathering(const std::shared_ptr<Call>& call);
  void handle_gathered_event(const std::shared_ptr<Gathering>& gathering, size_t sample,
                             const api::Event& event);
  void respond_whole_answer(const std::shared_ptr<Gathering>& gathering);
  [[nodiscard]] Elsewhere stream_executor_for(const Call& call) const;
  [[nodiscard]] std::shared_ptr<Streaming> make_streaming(const std::shared_ptr<Call>& call) const;
  // Submits the samples; their tokens are streamed as they come.
  void begin_streaming(const std::shared_ptr<Call>& call);
  void handle_streamed_event(Streaming& streaming, size_t sample, const api::Event& event);
  void end_failed_stream(Streaming& streaming, const api::Failure& failure);
  // Runs `work` elsewhere where it is long, then `then` here; what either throws is the response.
  void run_call_work(const Respond& respond, const std::string& tenant, bool is_long,
                     std::function<void()> work, std::function<void()> then);

  OpenAiParts parts_;
  AnswerGrammars grammars_;
};

}  // namespace strata::server
