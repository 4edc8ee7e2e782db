#include "apps/generate/chat.h"

#include <fmt/format.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <cstdio>
#include <iostream>

#include "base/error.h"
#include "report/format.h"

namespace strata::apps {
namespace {

class Conversation {
 public:
  explicit Conversation(const ChatOptions& options)
      : options_(options), generator_(options.generation) {
    if (const auto end = generator_.text().turn_end(options.vars)) generator_.add_end_token(*end);
    reset();
  }

  void reset() {
    messages_.clear();
    if (!options_.system.empty()) add("system", options_.system);
  }

  // Prints the answer as it comes, and remembers both turns.
  void ask(const std::string& text) {
    add("user", text);
    const std::string rendered =
        generator_.text().render({.messages = boost::json::serialize(messages_),
                                  .vars = options_.vars,
                                  .add_generation_prompt = true});
    const auto write = [](std::string_view piece) {
      std::fwrite(piece.data(), 1, piece.size(), stdout);
      std::fflush(stdout);
    };
    const Generated answer = generator_.run(generator_.text().tokenizer().encode(rendered), write);
    write("\n");
    add("assistant", answer.text);
    fmt::print(stderr, "[{} tokens, {} tokens/s, ended by {}]\n", answer.tokens.size(),
               report::format_count(static_cast<double>(answer.tokens.size()) / answer.seconds),
               answer.stop_reason);
  }

  [[nodiscard]] std::optional<uint64_t> seed() const { return generator_.seed(); }

 private:
  void add(const char* role, const std::string& content) {
    messages_.push_back(boost::json::object{{"role", role}, {"content", content}});
  }

  const ChatOptions& options_;
  Generator generator_;
  boost::json::array messages_;
};

void read_turns(Conversation& conversation) {
  const bool interactive = ::isatty(STDIN_FILENO) == 1;
  if (interactive) fmt::print(stderr, "/reset starts over, /quit leaves\n");
  std::string line;
  while (true) {
    if (interactive) fmt::print(stderr, "> ");
    if (!std::getline(std::cin, line) || line == "/quit") break;
    if (line == "/reset") {
      conversation.reset();
    } else if (!line.empty()) {
      conversation.ask(line);
    }
  }
}

}  // namespace

int run_chat(const ChatOptions& options) {
  Conversation conversation(options);
  if (conversation.seed()) fmt::print(stderr, "[seed {}]\n", *conversation.seed());
  if (options.prompt.empty()) {
    read_turns(conversation);
  } else {
    conversation.ask(options.prompt);
  }
  return 0;
}

}  // namespace strata::apps
