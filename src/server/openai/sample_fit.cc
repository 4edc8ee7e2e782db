// SPDX-License-Identifier: Apache-2.0
// OpenAiEndpoint::fit_sample(): grammars of samples that are asked for by token ids.
#include <memory>
#include <optional>

#include "base/error.h"
#include "server/openai/answer_constraint.h"
#include "server/openai/openai_endpoint.h"
#include "server/tinker/refusals.h"
#include "text/json_body.h"

namespace strata::server {

void OpenAiEndpoint::fit_sample(const std::string& tenant, size_t base, const std::string& outputs,
                                const Respond& respond,
                                const std::function<void(structured::GrammarStore::Held)>& then) {
  using Held = structured::GrammarStore::Held;
  constexpr const char* kWhere = "asample";
  const std::optional<ServedText>& text = parts_.texts.at(base);
  if (!text) {
    throw Error(ErrorCode::kInvalidArgument,
                "asample: structured_outputs: the model has no tokenizer.json, so no grammar is "
                "made of its tokens");
  }
  const std::string body = "{\"structured_outputs\":" + outputs + "}";
  const text::JsonBody json(body, kWhere);
  std::optional<AnswerConstraint> constraint = read_format_constraint(json.root());
  if (!constraint) return then(nullptr);  // it says that the answer is free
  const auto give = [respond, then](const Held& held) {
    if (held == nullptr) return respond(refuse(kNoSpaceForSchema));
    then(held);
  };
  if (const std::optional<Held> held = grammars_.find(tenant, *text, *constraint))
    return give(*held);
  const auto compile = [this, tenant, base, respond, give, of = *std::move(constraint)] {
    run_answering_faults(kWhere, respond, [&] {
      const Held held =
          grammars_.compile(tenant, *parts_.texts[base], parts_.bases[base].vocab_size, of);
      const auto end = [respond, give, held] {
        run_answering_faults(kWhere, respond, [&] { give(held); });
      };
      if (!parts_.back) return end();
      parts_.back(end);
    });
  };
  if (!parts_.compile) return compile();
  if (!parts_.compile(tenant, compile)) respond(refuse(kTooManySchemas));
}

}  // namespace strata::server
