// SPDX-License-Identifier: Apache-2.0
// Calls of tools as models write them, and how each family writes them: a row of marks and a
// reader. Which row is a model's, its chat template says. Readers are strict: text that is no call
// is nothing, and stays text.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/openai/call_writing.h"
#include "text/answer_piece.h"
#include "text/chat_template.h"

namespace strata::server {

using text::ToolCall;

// The types of the parameters of a request's tools, for forms that write values without one.
class ToolTypes {
 public:
  ToolTypes() = default;
  // The request's list of tools, JSON; what is odd in it has no type.
  explicit ToolTypes(std::string_view tools);
  // A value that was written as bare text, as JSON: of the first type that the parameter may have
  // and the text reads as, in the order null, integer, number, boolean, object, array, string; of
  // none of them, whatever JSON it is, else a string. So vLLM reads them.
  [[nodiscard]] std::string value_json(const std::string& function, const std::string& parameter,
                                       std::string_view text) const;

 private:
  std::map<std::pair<std::string, std::string>, std::set<std::string>> types_;
};

// A value that is written by itself.
struct ToolParameter {
  std::string name;
  std::string text;
  bool is_json = false;  // else what its type says (ToolTypes::value_json)
};

// What is certain of a call that is still being written.
struct CallHead {
  enum class State : uint8_t { kNotYet, kNone, kKnown };
  State state = State::kNotYet;  // kNone: nothing before its end
  std::string name = {};
  size_t arguments = 0;    // where they begin in the text
  bool is_member = false;  // of an object, which ends behind them
  // Takes the first parameter that is whole, or is the last, from the text; null: the arguments are
  // one object's text.
  std::optional<ToolParameter> (*next)(std::string_view& text, bool is_last) = nullptr;
};

using ToolCalls = std::optional<std::vector<ToolCall>>;  // nothing: it is none

struct CallForm {
  std::string_view sign;   // stands in the templates of the family
  std::string_view open;   // empty: calls are the whole answer, which then begins with a brace
  std::string_view close;  // empty: the next open, or the end
  std::vector<std::string_view> around;  // marks next to these, which say nothing
  std::vector<std::string_view> inside;  // marks that may be special tokens
  ToolCalls (*read)(std::string_view inner, const ToolTypes& types);
  CallHead (*head)(std::string_view inner);  // of what there is of it yet
  CallWriting (*writing)(const text::ChatTemplate& chat);
  // Those of the marks that text may be made of although they are special tokens.
  std::vector<std::string_view> in_text = {};
};

// Null for a template that writes no calls.
const CallForm* find_call_form(const text::ChatTemplate& chat);

}  // namespace strata::server
