// SPDX-License-Identifier: Apache-2.0
// Grammars of answers that call tools, or have channels, so that what a model may write is what the
// reader of its family reads (tool_call.h, text/harmony_reader.h): structural tags of XGrammar's,
// as JSON.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "api/work.h"
#include "server/openai/answer_parser.h"
#include "server/openai/arguments_format.h"
#include "server/openai/served_text.h"
#include "structured/grammar.h"

namespace strata::server {

struct CallsGrammar {
  std::vector<GrammarTool> tools;
  bool may_repeat = true;      // more calls than one
  bool begins_free = false;    // free text comes first, which may also be all of the answer
  std::string or_schema = {};  // an answer without calls fits this schema; empty: there is none
};

// What a family's form cannot keep of a schema is a fault of a strict tool's, and else added to the
// warnings.
structured::GrammarSource make_calls_source(const ServedText& text, const AnswerForm& form,
                                            const CallsGrammar& calls,
                                            std::vector<std::string>& warnings);

// What an answer in channels fits: thoughts, which are free, then `answer` in the channel `final`,
// or a call. Without an answer a call has to follow, but for calls that begin free: then the answer
// is any text, and such may come before a call too.
structured::GrammarSource make_channels_source(const ServedText& text, const CallsGrammar& calls,
                                               const structured::GrammarSource* answer,
                                               std::vector<std::string>& warnings);

// The tokens as grammars of this model's answers see them: marks stand by themselves alone.
structured::Vocabulary make_answer_vocabulary(const ServedText& text, int64_t vocab_size);

}  // namespace strata::server
