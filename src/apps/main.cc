// SPDX-License-Identifier: Apache-2.0
// The program: commands with their tables of options. Wiring only.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "apps/command_line.h"
#include "apps/help.h"
#include "apps/manual.h"
#include "apps/options.h"
#include "apps/resolve_paths.h"
#include "apps/serve/options.h"
#include "apps/serve/serve.h"
#include "apps/suggest.h"
#include "backend/backend.h"
#include "base/env.h"
#include "base/error.h"
#include "base/log.h"
#include "base/say.h"
#include "setup/backend.h"
#include "setup/exit_code.h"
#include "setup/version.h"
#include "structured/compile_child.h"

namespace strata::apps {
namespace {

// A command whose options wait for its command line.
struct Invocation {
  std::shared_ptr<const OptionTable> table;
  std::function<int()> run;
};

struct Command {
  CommandText text;
  std::function<Invocation()> prepare;
  std::vector<Command> parts = {};  // "NAME WORD", each with options of its own
  // Where one of its words was left out, or is an old one: the arguments as they are typed today.
  std::vector<std::string> (*spell_out)(std::span<const std::string> arguments) = nullptr;
};

// The options and their table live as long as what may run them.
template <typename Options>
Invocation make_invocation(int (*run)(const Options&)) {
  auto options = std::make_shared<Options>();
  auto table = std::make_shared<const OptionTable>(option_table_of(*options));
  return {table, [options, table, run] {
            table->check();
            resolve_paths(*options);
            return run(*options);
          }};
}

template <typename Options>
Command command(const char* name, const char* help, const char* examples,
                int (*run)(const Options&)) {
  return {{name, help, examples}, [run] { return make_invocation(run); }};
}

Invocation make_serve_invocation() {
  const std::shared_ptr<ServeCommandLine> line = make_serve_command_line();
  return {std::shared_ptr<const OptionTable>(line, &line->rows), [line] {
            server::ServeOptions options = read_serve_options(*line);
            resolve_paths(options);
            return run_serve(options, line->verbose);
          }};
}

Invocation make_plan_invocation(const PlanMode& mode) {
  auto options = std::make_shared<PlanOptions>();
  auto table = std::make_shared<const OptionTable>(option_table_of(*options, mode));
  return {table, [mode, options, table] {
            table->check();
            resolve_paths(*options);
            return run_plan(*options, mode);
          }};
}

Command make_plan_command() {
  Command plan = {{"plan", "Say what a run will take and how long, without running it",
                   "Each with the options of its own: strata plan train|serve|schedule --help;\n"
                   "without such a word it is training that is planned.\n"
                   "Examples:\n"
                   "  strata plan qwen3          (can it be tuned here?)\n"
                   "  strata plan train qwen3-0.6b --tokens 1x8192 --memory 6GiB --svg plan.svg\n"
                   "  strata plan serve qwen3 --memory 8GiB\n"
                   "  strata plan schedule --schedule 1f1b --pipeline 4 --microbatches 8"},
                  [] { return make_plan_invocation(find_plan_mode("train")); }};
  plan.spell_out = with_plan_word;
  for (const PlanMode& mode : plan_modes()) {
    plan.parts.push_back({{fmt::format("plan {}", mode.word), mode.help, mode.examples},
                          [&mode] { return make_plan_invocation(mode); }});
  }
  return plan;
}

std::vector<Command> commands_of_training() {
  return {
      command("train", "Fine-tune a model on files of data",
              "Examples:\n"
              "  strata train --model qwen3 --data chats.jsonl --out adapter\n"
              "  strata train --model qwen3 --data chats.jsonl --out adapter --resume\n"
              "  strata train --model qwen3 --data text.jsonl --out tuned --method full --lr 2e-5\n"
              "  strata train --model qwen3 --data alpaca.json --out sweep --lr 1e-4,3e-4,1e-3\n"
              "  strata train --config recipe.toml --out again",
              run_train),
      make_plan_command(),
      command("data", "Say what files of data hold, as training would read them",
              "Examples:\n"
              "  strata data chats.jsonl --model qwen3\n"
              "  strata data alpaca.json.gz --model qwen3 --show 10 --train-on all",
              run_data),
      command("eval", "Loss, perplexity and accuracy on files of data, of a model and its adapters",
              "Examples:\n"
              "  strata eval --model qwen3 --adapter adapter --data heldout.jsonl\n"
              "  strata eval --adapter a --adapter b --data x.jsonl --data y.jsonl --json",
              run_eval),
  };
}

std::vector<Command> commands_of_models() {
  return {
      command("generate", "Continue a prompt",
              "Examples:\n"
              "  strata generate --model qwen3 --prompt \"Once upon a time\" --max-tokens 64\n"
              "  strata generate --model qwen3 --adapter adapter --prompt \"Q: 2 + 2\" "
              "--temperature 0",
              run_generate),
      command("chat", "Talk to a model through its chat template",
              "Examples:\n"
              "  strata chat --model qwen3 --adapter adapter\n"
              "  strata chat --model qwen3 --prompt \"Who are you?\" --temperature 0",
              run_chat),
      command("inspect", "Say what a checkpoint holds and what is wrong",
              "Example:\n  strata inspect --model qwen3 --tensors", run_inspect),
      command("merge", "Add LoRA adapters to a model's weights, as a new model",
              "Examples:\n"
              "  strata merge --model qwen3 --adapter adapter --out merged\n"
              "  strata merge --model qwen3 --adapter style:0.5 --adapter facts --out merged",
              run_merge),
      command("convert", "Write a model as safetensors or GGUF, in another type or layout",
              "Examples:\n"
              "  strata convert --model qwen3 --to gguf --type q8_0 --out qwen3-q8_0.gguf\n"
              "  strata convert --model qwen3 --adapter adapter --to gguf --out tuned.gguf\n"
              "  strata convert --model qwen3-q8_0.gguf --to safetensors --type bf16 --out qwen3",
              run_convert),
      command("probe", "Run a model on given token ids and write what it computed",
              "Example:\n  strata probe --model tiny-llama --adapter a --request r.json --out "
              "o.safetensors --threads 1",
              run_probe),
      command("pull", "Download a model of the Hugging Face hub, by hf",
              "Example:\n  strata pull Qwen/Qwen3-0.6B && strata chat Qwen/Qwen3-0.6B", run_pull),
      command("init", "Write a checkpoint with random weights",
              "Example:\n  strata init --config qwen3-0.6b --out random --seed 1", run_init),
      command(
          "tokenize", "JSON lines: text to ids, ids to text, conversations to text",
          "Example:\n  strata tokenize --tokenizer models/tiny --in texts.jsonl --out ids.jsonl",
          run_tokenize),
      command("bench", "Measure training, prefill or decoding against this machine's limits",
              "Example:\n  strata bench train_s512 --json", run_bench),
  };
}

std::vector<Command> commands_of_servers() {
  return {
      {{"serve", "Serve models over the Tinker API to many tenants",
        "Each option may also stand in the environment (STRATA_MAX_BODY=1MiB for --max-body; "
        "lists\n"
        "with commas) or in the file. Order: command line, environment, file, default.\n"
        "STRATA_KEYS and STRATA_ADMIN_KEYS hold keys, with commas, instead of a file's name.\n"
        "Examples:\n"
        "  strata serve models/tiny-qwen3       (for this machine alone, without keys)\n"
        "  strata keygen > keys && chmod 600 keys\n"
        "  strata serve --model tiny=models/tiny-qwen3 --data state --keys keys"},
       make_serve_invocation},
      command("keygen", "Print a new API key for strata serve",
              "Examples:\n"
              "  strata keygen > keys && chmod 600 keys\n"
              "  strata keygen --hash >> keys",
              run_keygen),
      command("backup", "Write a server's data directory to one file; the server may run meanwhile",
              "Example:\n  strata backup --data state --out state.tar", run_backup),
      command("restore", "Make a data directory from a backup",
              "Example:\n  strata restore --in state.tar --data state", run_restore),
      command("check",
              "Say whether a data directory or a backup is whole; exit code 2 when it is not",
              "Examples:\n"
              "  strata check --data state\n"
              "  strata check --in state.tar --archive-key backup.key",
              run_check),
  };
}

std::vector<CommandText> texts_with_plain_commands(const std::vector<Command>& commands) {
  std::vector<CommandText> texts;
  for (const Command& command : commands) texts.push_back(command.text);
  for (CommandText& text : plain_commands()) texts.push_back(std::move(text));
  return texts;
}

[[noreturn]] void refuse_unknown_command(const std::string& typed,
                                         const std::vector<Command>& commands) {
  std::vector<std::string> names;
  for (const CommandText& text : texts_with_plain_commands(commands)) names.push_back(text.name);
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("there is no command '{}'{}\n`strata help` lists the commands", typed,
                          did_you_mean(similar_commands(typed, names), "")));
}

const Command& find_command(const std::string& typed, const std::vector<Command>& commands) {
  for (const Command& command : commands) {
    if (command.text.name == typed) return command;
  }
  refuse_unknown_command(typed, commands);
}

// The subcommand that comes first, which is taken off; or the command itself.
const Command& take_subcommand(const Command& command, std::span<const std::string>& arguments) {
  for (const Command& part : command.parts) {
    if (arguments.empty() || part.text.name != command.text.name + " " + arguments[0]) continue;
    arguments = arguments.subspan(1);
    return part;
  }
  return command;
}

int run_command(const Command& whole, std::span<const std::string> arguments) {
  std::vector<std::string> spelled_out;
  if (whole.spell_out != nullptr) {
    spelled_out = whole.spell_out(arguments);
    arguments = spelled_out;
  }
  const Command& command = take_subcommand(whole, arguments);
  const Invocation invocation = command.prepare();
  const HelpWanted help = read_command_line(command.text, *invocation.table, arguments);
  if (help == HelpWanted::kNo) return invocation.run();
  fmt::print("{}", command_help(command.text, *invocation.table, help == HelpWanted::kAll));
  return 0;
}

// One without options.
std::optional<CommandText> find_plain_command(const std::string& name) {
  for (CommandText& text : plain_commands()) {
    if (text.name == name) return std::move(text);
  }
  return std::nullopt;
}

int run_help(std::span<const std::string> asked, const std::vector<Command>& commands) {
  if (asked.empty() || asked[0].starts_with('-')) {
    fmt::print("{}", overview(texts_with_plain_commands(commands)));
    return 0;
  }
  if (const std::optional<CommandText> plain = find_plain_command(asked[0])) {
    fmt::print("{}\n\nUsage: strata {}{}\n", plain->help, plain->name,
               plain->name == "help" ? " [COMMAND]" : "");
    return 0;
  }
  std::vector<std::string> arguments(asked.begin() + 1, asked.end());
  arguments.emplace_back("--help");
  return run_command(find_command(asked[0], commands), arguments);
}

std::vector<DocumentedCommand> documented_commands(const std::vector<Command>& commands) {
  std::vector<DocumentedCommand> documented;
  for (const Command& command : commands) {
    documented.push_back({command.text, command.prepare().table});
  }
  return documented;
}

// For packages: it has all other commands in it.
Command make_manual_command(const std::vector<Command>& commands) {
  const auto prepare = [commands] {
    const auto dir = std::make_shared<std::string>();
    auto table = std::make_shared<OptionTable>();
    table->text("out", *dir, "folder to write to").required();
    return Invocation{table, [commands, dir] {
                        write_manual(*dir, documented_commands(commands));
                        return 0;
                      }};
  };
  return {{"manual", "Write man pages, completions of shells and an example configuration",
           "Example:\n  strata manual --out pages"},
          prepare};
}

std::vector<Command> all_commands() {
  std::vector<Command> commands = commands_of_training();
  for (Command& command : commands_of_models()) commands.push_back(std::move(command));
  for (Command& command : commands_of_servers()) commands.push_back(std::move(command));
  commands.push_back(make_manual_command(commands));
  return commands;
}

void print_version() {
  const std::string commit = kCommit;
  fmt::print("strata {}, CPU path {}{} ({})\n", kVersion, describe_arithmetic_in_use(),
             commit.empty() ? "" : ", commit " + commit, kBuild);
}

int run_program(const std::vector<std::string>& arguments) {
  if (arguments == std::vector<std::string>{structured::kCompileChildWord})
    return structured::run_compile_child();
  const std::vector<Command> commands = all_commands();
  const std::string first = arguments.empty() ? "help" : arguments[0];
  const std::span<const std::string> rest =
      std::span(arguments).subspan(std::min<size_t>(arguments.size(), 1));
  if (first == "version" || first == "--version") {
    print_version();
    return 0;
  }
  const bool is_help = first == "help" || first == "-h" || first.starts_with("--help");
  return is_help ? run_help(rest, commands) : run_command(find_command(first, commands), rest);
}

}  // namespace
}  // namespace strata::apps

int main(int argc, char** argv) {
  try {
    strata::set_log_level(strata::env_log_level());
    return strata::apps::run_program({argv + std::min(argc, 1), argv + argc});
  } catch (const strata::Error& error) {
    strata::say(fmt::format("strata: {}\n", error.what()));
    return strata::apps::exit_code(error);
  } catch (const std::exception& error) {
    strata::say(fmt::format("strata: {}\n", error.what()));
    return 1;
  }
}
