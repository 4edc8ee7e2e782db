// SPDX-License-Identifier: Apache-2.0
// Conversation: the turns of a chat and the model that answers them. Every answer is that of the
// turns as they stand, through the model's chat template: where they come from (typed, loaded,
// asked again) changes no bit of it. A fault leaves the turns as they were.
#pragma once
#include <boost/json/array.hpp>
#include <string>

#include "apps/generate/generation.h"

namespace strata::apps {

struct ConversationOptions {
  GenerationOptions generation;
  std::string system;  // a system turn before all
};

class Conversation {
 public:
  explicit Conversation(const ConversationOptions& options);

  // Prints the answer as it comes, and remembers both turns. Of an answer in channels (gpt-oss) the
  // final one is the answer; what the model thinks and the tools it calls go to stderr. Turns that
  // the context has no space for are dropped, the oldest first, never the system turn, and it says
  // so. What was printed before `stop` said to end is the answer; where nothing was, the turn is
  // taken back. Throws Error for a turn that is too long by itself, and for what the template
  // refuses.
  Generated ask(const std::string& text, FunctionRef<bool()> stop);
  // The last question once more; false where there is none.
  bool regenerate(FunctionRef<bool()> stop);
  // Starts over; the system turn stays.
  void clear();
  void set_system(const std::string& text);  // empty: none
  [[nodiscard]] const std::string& system() const { return system_; }
  // {"messages": [...]}, as strata train reads it. Throws Error where something else is there.
  void save(const std::string& path) const;
  void load(const std::string& path);
  [[nodiscard]] std::string stats_text();
  [[nodiscard]] size_t num_questions() const;
  // Sets a sampling option for the answers that follow.
  void set_option(const std::string& name, const std::string& value) {
    generator_.set_option(name, value);
  }
  [[nodiscard]] const Generator& generator() const { return generator_; }

 private:
  void add(const char* role, const std::string& content);
  [[nodiscard]] std::vector<int32_t> encode_messages(const boost::json::array& messages,
                                                     bool to_answer = true) const;
  void check_fits(int64_t num_tokens) const;
  // The prompt of the turns up to a question. Drops pairs of question and answer, and says so, as
  // long as there are any and the space for an answer is too small.
  std::vector<int32_t> fit_prompt();
  // Generates an answer, prints it as it comes, and counts it.
  Generated stream_answer(FunctionRef<bool()> stop);

  ConversationOptions options_;
  Generator generator_;
  bool has_channels_ = false;
  std::string system_;
  boost::json::array messages_;  // the system turn, if any, then question and answer in turn
  int64_t num_answers_ = 0, num_tokens_ = 0;
  double seconds_ = 0;
};

}  // namespace strata::apps
