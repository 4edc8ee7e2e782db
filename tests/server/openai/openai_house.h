// SPDX-License-Identifier: Apache-2.0
// An OpenAiEndpoint over a House, with the tokenizer and the template of the bundled model: called
// through its routes, answered by hand. One thread.
#pragma once
#include <boost/json.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/files.h"
#include "server/http/body_stream.h"
#include "server/openai/openai_endpoint.h"
#include "server/openai/openai_error.h"
#include "tests/server/tinker/service/house.h"

namespace strata::server {

inline std::string bundled_model() { return STRATA_SOURCE_DIR "/models/tiny-qwen3"; }

inline const ServedText& bundled_text() {
  static const ServedText kText = {.tokenizer = text::Tokenizer::load(bundled_model()),
                                   .chat = text::ChatTemplate::parse(read_file(
                                       bundled_model() + "/chat_template.jinja", 1 << 20)),
                                   .turn_end = 4072};
  return kText;
}

inline api::BaseInfo bundled_base() {
  return {.id = api::BaseId{0},
          .dir = "d",
          .vocab_size = 4096,
          .max_context = 600,
          .longest_datum = 48,
          .end_tokens = {4070, 4072}};
}

class OpenAiHouse {
 public:
  // With threads, what takes long waits in `elsewhere`, and what follows in `turns`.
  explicit OpenAiHouse(const std::vector<UsageLimit>& rates = {},
                       const ServedText& text = bundled_text(),
                       const ServiceOptions& options = ServiceOptions(), bool has_threads = false,
                       structured::GrammarStore* grammars = nullptr)
      : house(options, {}, rates), endpoint_(parts(text, has_threads, grammars)) {
    endpoint_.add_routes(router_);
    house.fit = [this](const auto&... asked) { endpoint_.fit_sample(asked...); };
  }

  // The answer, in the form that clients see it in; status 0 while it waits.
  static Response waiting() {
    Response response;
    response.status = 0;
    return response;
  }
  struct Answer {
    Response response = waiting();
    int count = 0;
    [[nodiscard]] boost::json::value json() const { return boost::json::parse(response.bytes()); }
    [[nodiscard]] std::string error(const char* field) const {
      const boost::json::value value = json();
      const boost::json::value& found = value.at("error").at(field);
      return found.is_string() ? std::string(found.as_string()) : "";
    }
  };
  std::shared_ptr<Answer> call(const std::string& method, const std::string& path,
                               const std::string& body = "") {
    auto answer = std::make_shared<Answer>();
    Request request;
    request.method = method;
    request.path = path;
    request.headers = {{"content-type", "application/json"}};
    request.body = body;
    request.tenant = "alice";
    request.charge = std::make_shared<Charge>(house.service().futures().open("alice"));
    request.key_id = "key";
    request.about = about = std::make_shared<std::string>();
    request.on_hang_up = hang_up = std::make_shared<std::function<void()>>();
    router_.match_route(request);
    router_.dispatch(std::move(request), [answer, path](Response response) {
      rewrite_as_openai_error(path, response);
      answer->response = std::move(response);
      ++answer->count;
    });
    return answer;
  }
  std::shared_ptr<Answer> chat(const std::string& more) {
    return call("POST", "/v1/chat/completions", R"({"model":"tiny",)" + more + "}");
  }
  std::shared_ptr<Answer> complete(const std::string& more) {
    return call("POST", "/v1/completions", R"({"model":"tiny",)" + more + "}");
  }

  const api::Command& command(size_t i = 0) { return house.submitted.at(i); }
  const api::Sample& sample(size_t i = 0) { return std::get<api::Sample>(command(i).op); }
  [[nodiscard]] static std::vector<int32_t> tokens(const std::string& text) {
    return bundled_text().tokenizer.encode(text);
  }
  // An answer of the i-th command: its tokens, then the end of the turn.
  void settle(size_t i, const std::vector<std::string>& texts, bool stopped = true) {
    api::SampleOutput output;
    for (const std::string& text : texts) {
      api::SampledSequence& sequence = output.sequences.emplace_back();
      sequence.tokens = tokens(text);
      if (stopped) sequence.tokens.push_back(4072);
      sequence.logprobs.assign(sequence.tokens.size(), -0.1f);
      sequence.stopped = stopped;
    }
    house.settle(command(i).request.text, std::move(output));
  }

  void tell(size_t i, api::RowTokens told) {
    house.service().post({api::Event(command(i).request, std::move(told))});
  }
  // One job; false: none waits.
  using Jobs = std::deque<std::function<void()>>;
  static bool run(Jobs& jobs) {
    if (jobs.empty()) return false;
    const auto job = std::move(jobs.front());
    jobs.pop_front();
    job();
    return true;
  }
  void run_all() {
    while (run(elsewhere) || run(turns)) {
    }
  }

  House house;
  std::shared_ptr<std::string> about;
  std::shared_ptr<std::function<void()>> hang_up;  // of the last request
  Jobs elsewhere, turns, compiles;
  bool takes_compiles = true;

 private:
  OpenAiParts parts(const ServedText& text, bool has_threads, structured::GrammarStore* grammars) {
    OpenAiParts out = {.service = house.service(),
                       .names = names_,
                       .bases = {bundled_base()},
                       .texts = std::vector<std::optional<ServedText>>(1, text),
                       .created = 1000,
                       .grammars = grammars};
    if (!has_threads) return out;
    out.parse = [this](const std::string&, std::function<void()> job) {
      elsewhere.push_back(std::move(job));
    };
    out.compile = [this](const std::string&, std::function<void()> job) {
      if (takes_compiles) compiles.push_back(std::move(job));
      return takes_compiles;
    };
    out.back = [this](std::function<void()> job) { turns.push_back(std::move(job)); };
    return out;
  }

  BaseNames names_{std::vector<std::string>{"tiny=" + bundled_model()}, {"org/name=tiny"}, {}};
  Router router_;
  OpenAiEndpoint endpoint_;
};

}  // namespace strata::server
