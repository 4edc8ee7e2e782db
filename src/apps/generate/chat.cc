// SPDX-License-Identifier: Apache-2.0
#include "apps/generate/chat.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "apps/generate/interrupts.h"
#include "apps/generate/turn_reader.h"
#include "base/env.h"
#include "base/error.h"
#include "base/stop.h"

namespace strata::apps {
namespace {

[[noreturn]] void fail(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

// What follows a command's name; a file's may begin with ~/.
std::string file_of(const std::string& command, const std::string& argument) {
  if (argument.empty()) fail(command + ": want the name of a file");
  return argument.starts_with("~/") ? env_home() + argument.substr(1) : argument;
}

void run_system_command(Conversation& chat, const std::string& argument) {
  if (argument.empty()) {
    fmt::print(stderr, "{}\n",
               chat.system().empty() ? "no system turn" : "system: " + chat.system());
    return;
  }
  chat.set_system(argument == "-" ? "" : argument);
}

// "NAME VALUE"; ollama's users have the word parameter before that.
void run_set_command(Conversation& chat, std::string argument) {
  constexpr std::string_view kParameter = "parameter ";
  if (argument.starts_with(kParameter)) argument.erase(0, kParameter.size());
  if (!argument.empty()) {
    const size_t space = argument.find(' ');
    const size_t value = argument.find_first_not_of(' ', space);
    if (value == std::string::npos) fail("/set: want NAME VALUE, like temperature 0.7");
    chat.set_option(argument.substr(0, space), argument.substr(value));
  }
  fmt::print(stderr, "[{}]\n", chat.generator().options_text());
}

struct ChatCommand {
  std::string_view name, argument, help;
  void (*run)(Conversation& chat, const std::string& argument, FunctionRef<bool()> stop);
};

void print_help(Conversation&, const std::string&, FunctionRef<bool()>);

const ChatCommand kCommands[] = {
    {"/help", "", "this list", &print_help},
    {"/clear", "", "start over; the system turn stays",
     [](Conversation& chat, const std::string&, FunctionRef<bool()>) { chat.clear(); }},
    {"/system", "[TEXT]", "set the system turn; - removes it, no text shows it",
     [](Conversation& chat, const std::string& argument, FunctionRef<bool()>) {
       run_system_command(chat, argument);
     }},
    {"/set", "[NAME VALUE]", "set temperature, top-k, top-p, seed, max-tokens, ...",
     [](Conversation& chat, const std::string& argument, FunctionRef<bool()>) {
       run_set_command(chat, argument);
     }},
    {"/regenerate", "", "answer the last question once more",
     [](Conversation& chat, const std::string&, FunctionRef<bool()> stop) {
       if (!chat.regenerate(stop)) fail("/regenerate: there is no question yet");
     }},
    {"/save", "FILE", "write the conversation, as a line of training data",
     [](Conversation& chat, const std::string& argument, FunctionRef<bool()>) {
       chat.save(file_of("/save", argument));
       fmt::print(stderr, "[saved]\n");
     }},
    {"/load", "FILE", "go on with a saved conversation",
     [](Conversation& chat, const std::string& argument, FunctionRef<bool()>) {
       chat.load(file_of("/load", argument));
       fmt::print(stderr, "[loaded; questions: {}]\n", chat.num_questions());
     }},
    {"/stats", "", "tokens, speed, sampling",
     [](Conversation& chat, const std::string&, FunctionRef<bool()>) {
       fmt::print(stderr, "{}", chat.stats_text());
     }},
    {"/reset", "", "the same as /clear",
     [](Conversation& chat, const std::string&, FunctionRef<bool()>) { chat.clear(); }},
};

void print_help(Conversation&, const std::string&, FunctionRef<bool()>) {
  for (const ChatCommand& command : kCommands) {
    fmt::print(
        stderr, "{:<18} {}\n",
        fmt::format("{}{}{}", command.name, command.argument.empty() ? "" : " ", command.argument),
        command.help);
  }
  fmt::print(stderr,
             "{:<18} leave; also /exit, /quit, exit, quit and Ctrl-D\n"
             "\"\"\" opens and closes several lines; Ctrl-C ends an answer\n",
             "/bye");
}

bool leaves(const std::string& turn) {
  return turn == "/bye" || turn == "/exit" || turn == "/quit";
}

// Whether a person at a terminal takes leave; in a pipe the same word is a question.
bool is_farewell(const std::string& turn) { return turn == "exit" || turn == "quit"; }

const ChatCommand& find_command(const std::string& name) {
  for (const ChatCommand& command : kCommands) {
    if (command.name == name) return command;
  }
  fail(
      fmt::format("{}: no such command; /help lists them (a text that begins with / needs a "
                  "space before it)",
                  name));
}

std::string command_name(const std::string& turn) { return turn.substr(0, turn.find(' ')); }

// What follows the name and its spaces.
std::string command_argument(const std::string& turn) {
  const size_t name_end = std::min(turn.find(' '), turn.size());
  const size_t begin = turn.find_first_not_of(' ', name_end);
  return begin == std::string::npos ? "" : turn.substr(begin);
}

void run_command(Conversation& chat, const std::string& turn, FunctionRef<bool()> stop) {
  const std::string name = command_name(turn);
  const ChatCommand& command = find_command(name);
  command.run(chat, command_argument(turn), stop);
}

// Runs a turn that is a command; asks the model any other.
void handle_turn(Conversation& chat, const std::string& turn, FunctionRef<bool()> stop) {
  if (is_command(turn)) {
    run_command(chat, turn, stop);
  } else {
    chat.ask(turn, stop);
  }
}

// A conversation at a terminal: nothing but leaving ends it.
int run_terminal_chat(Conversation& chat, TurnReader& reader) {
  const Interrupts interrupts;
  fmt::print(stderr, "/help lists the commands, /bye leaves\n");
  const auto stop = [] { return Interrupts::noted(); };
  while (const std::optional<std::string> turn = reader.read_turn()) {
    if (leaves(*turn) || is_farewell(*turn)) break;
    try {
      handle_turn(chat, *turn, stop);
    } catch (const Error& error) {
      fmt::print(stderr, "{}\n", error.what());
    }
    Interrupts::forget();  // it ended the answer
  }
  return 0;
}

// The exit code; 0 without a signal. Signals are taken while `body` runs, and else end the process.
int run_until_signal(FunctionRef<void(FunctionRef<bool()>)> body) {
  const StopSignals signals("");
  body([] { return StopSignals::asked(); });
  return StopSignals::exit_code();
}

// A conversation from a file or a pipe. Returns the exit code: that of a signal that ended it.
int run_piped_chat(Conversation& chat, TurnReader& reader) {
  while (const std::optional<std::string> turn = reader.read_turn()) {
    if (leaves(*turn)) break;
    const int code =
        run_until_signal([&](FunctionRef<bool()> stop) { handle_turn(chat, *turn, stop); });
    if (code != 0) return code;
  }
  return 0;
}

}  // namespace

int run_chat(const ChatOptions& options) {
  Conversation chat(options);
  if (chat.generator().seed()) fmt::print(stderr, "[seed {}]\n", *chat.generator().seed());
  if (!options.prompt.empty()) {
    return run_until_signal([&](FunctionRef<bool()> stop) { chat.ask(options.prompt, stop); });
  }
  TurnReader reader;
  return reader.is_terminal() ? run_terminal_chat(chat, reader) : run_piped_chat(chat, reader);
}

}  // namespace strata::apps
