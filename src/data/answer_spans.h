// SPDX-License-Identifier: Apache-2.0
// AnswerSpans: where the answers of a conversation stand in its render, which is what is trained:
// of each what a model would have to write there. One render of the whole conversation counts, also
// where a template writes a turn of the past in another way than the last one.
//   marks   what the template says, by {% generation %}
//   begin   behind the prompt of an answer, as far as the render agrees with it; where it does not
//   at
//           all, the first byte that depends on the turn
//   end     through what the template writes behind the turn; of the last turn the end of the text
// A turn is known by itself, not by how the text before it looks: a text that nobody writes is put
// at the end of a message, and what follows it in the whole and in the turns so far is compared.
#pragma once
#include <boost/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "text/chat_template.h"

namespace strata::data {

using Renderer = FunctionRef<text::RenderedChat(const text::ChatRequest&)>;

// Bytes of a text that are trained.
struct Target {
  size_t begin = 0;
  size_t end = 0;
};

// A conversation as templates get it (text/conversation.h).
struct Conversation {
  boost::json::array messages;
  std::string tools, vars;  // JSON; "" where there are none

  [[nodiscard]] bool is_assistant(size_t turn) const;
};

class AnswerSpans {
 public:
  // Borrows both. Throws Error where the template refuses the conversation.
  AnswerSpans(const Conversation& conversation, Renderer render);

  [[nodiscard]] const text::RenderedChat& whole() const { return whole_; }
  // What a model is given before the last message; empty where the template refuses that.
  [[nodiscard]] std::string prompt_of_last() const;
  // The trained bytes of an assistant's turn; empty where it cannot be found.
  [[nodiscard]] std::vector<Target> find(size_t turn) const;

 private:
  [[nodiscard]] text::RenderedChat render(const boost::json::array& messages,
                                          bool with_prompt) const;
  // The text of the first `count` messages; nothing where the template refuses them.
  [[nodiscard]] std::optional<std::string> render_first(const boost::json::array& messages,
                                                        size_t count, bool with_prompt) const;
  [[nodiscard]] std::optional<Target> find_by_text(size_t turn) const;
  [[nodiscard]] std::optional<size_t> find_begin(size_t turn) const;
  [[nodiscard]] std::optional<size_t> find_end(size_t turn) const;
  [[nodiscard]] std::optional<size_t> find_agreement_behind(size_t turn, bool with_prompt) const;
  [[nodiscard]] std::optional<size_t> find_first_own_byte(size_t turn) const;
  [[nodiscard]] std::string make_unwritten_text() const;

  const Conversation& conversation_;
  Renderer render_;
  text::RenderedChat whole_;
};

}  // namespace strata::data
