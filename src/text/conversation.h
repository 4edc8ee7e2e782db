// SPDX-License-Identifier: Apache-2.0
// Conversations as people and programs write them, as the one form that chat templates get. Data
// and requests are read by it alike, so that what is served is what was trained.
//   role       developer is system, function and ipython are tool, human is user, gpt is assistant
//   from, value  ShareGPT's names of role and content; a turn from function_call holds calls
//   content    a string; parts of text, which stand on lines of their own; of a tool any JSON
//   tool_calls a list, an object or the JSON text of one; `function_call` is one of them;
//   `function`
//              may be left out around a name and its arguments, which may be an object or its text
//   reasoning_content   also `thinking`, `reasoning`, and parts of that type
// What a template is given has arguments as an object or as a text, and ids of the length, that it
// wants (ConversationForm); null members and marks of training are left out, and other members
// stay.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_template.h"
#include "text/json_body.h"

namespace boost::json {
class array;
class object;
class value;
}  // namespace boost::json

namespace strata::text {

// A member of a message, or of a record too, that says whether it is trained on; templates never
// see it.
struct TrainingMark {
  std::string_view name;
  bool trains = true;  // where it is 1 or true
  bool of_record = true;
};
std::span<const TrainingMark> training_marks();

enum class Roles : uint8_t { kKnown, kAny };  // any: one that is not known is the template's fault

class ConversationReader {
 public:
  explicit ConversationReader(const ConversationForm& form, Roles roles = Roles::kKnown);
  ~ConversationReader();
  ConversationReader(const ConversationReader&) = delete;
  ConversationReader& operator=(const ConversationReader&) = delete;

  // The next message. Throws FieldFault with the path of what is wrong.
  void add(const Fields& message);
  [[nodiscard]] bool empty() const;
  [[nodiscard]] boost::json::array take();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A list of tools, or its JSON text, each as {"type": "function", "function": {"name", ...}}; empty
// where there is none. `where` names the field in faults ("tools").
boost::json::array normalized_tools(const boost::json::value& tools, const std::string& where);

// Whether 64 bits hold each of its numbers: 1e999 would be text that is no JSON.
bool all_finite(const boost::json::value& value);

}  // namespace strata::text
