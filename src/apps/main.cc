// The program: commands with their tables of options. Wiring only. Exit codes: 0 done, 2 a fault of
// the request, an option or a file, 1 anything else.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <functional>

#include "apps/command_line.h"
#include "apps/options.h"
#include "apps/serve/options.h"
#include "apps/serve/serve.h"
#include "backend/backend.h"
#include "base/env.h"
#include "base/error.h"
#include "base/log.h"

namespace strata::apps {
namespace {

using Command = std::function<int()>;

// The options and their table live as long as what may run them.
template <typename Options>
void add_command(CLI::App& app, Command& chosen, const char* name, const char* help,
                 const char* footer, int (*run)(const Options&)) {
  auto options = std::make_shared<Options>();
  auto table = std::make_shared<OptionTable>(options_of(*options));
  CLI::App* command = app.add_subcommand(name, help);
  for (const OptionRow& row : table->rows()) add_row(*command, row);
  command->footer(footer);
  command->callback([&chosen, options, table, run] {
    chosen = [options, table, run] {
      table->check();
      return run(*options);
    };
  });
}

void add_commands_of_models(CLI::App& app, Command& chosen) {
  add_command(app, chosen, "train", "Fine-tune a model on a JSONL file",
              "Examples:\n"
              "  strata train --model qwen3 --data chats.jsonl --out adapter\n"
              "  strata train --model qwen3 --data chats.jsonl --out adapter --resume\n"
              "  strata train --model qwen3 --data text.jsonl --out tuned --method full --lr 2e-5",
              run_train);
  add_command(app, chosen, "plan", "Say what a run will take and how long, without running it",
              "Examples:\n"
              "  strata plan --model qwen3 --tokens 4x512\n"
              "  strata plan --model qwen3-0.6b --tokens 1x8192 --memory 6GiB --svg plan.svg\n"
              "  strata plan --model qwen3 --for serve --memory 8GiB\n"
              "  strata plan --schedule 1f1b --pipeline 4 --microbatches 8 --schedule-out s.csv",
              run_plan);
  add_command(
      app, chosen, "generate", "Continue a prompt",
      "Examples:\n"
      "  strata generate --model qwen3 --prompt \"Once upon a time\" --max-tokens 64\n"
      "  strata generate --model qwen3 --adapter adapter --prompt \"Q: 2 + 2\" --temperature 0",
      run_generate);
  add_command(app, chosen, "chat", "Talk to a model through its chat template",
              "Examples:\n"
              "  strata chat --model qwen3 --adapter adapter\n"
              "  strata chat --model qwen3 --prompt \"Who are you?\" --temperature 0",
              run_chat);
  add_command(app, chosen, "inspect", "Say what a checkpoint holds and what is wrong",
              "Example:\n  strata inspect --model qwen3 --tensors", run_inspect);
  add_command(app, chosen, "probe", "Run a model on given token ids and write what it computed",
              "Example:\n  strata probe --model tiny-llama --adapter a --request r.json --out "
              "o.safetensors --threads 1",
              run_probe);
  add_command(app, chosen, "init", "Write a checkpoint with random weights",
              "Example:\n  strata init --config qwen3-0.6b --out random --seed 1", run_init);
  add_command(
      app, chosen, "tokenize", "JSON lines: text to ids, ids to text, conversations to text",
      "Example:\n  strata tokenize --tokenizer models/tiny --in texts.jsonl --out ids.jsonl",
      run_tokenize);
  add_command(app, chosen, "bench",
              "Measure training, prefill or decoding against this machine's limits",
              "Example:\n  strata bench train_s512 --json", run_bench);
}

void add_serve(CLI::App& app, Command& chosen) {
  auto* command = app.add_subcommand("serve", "Serve models over the Tinker API to many tenants");
  const std::shared_ptr<ServeCommandLine> line = add_serve_options(*command);
  command->callback(
      [&chosen, line] { chosen = [line] { return run_serve(read_serve_options(*line)); }; });
}

void add_commands_of_servers(CLI::App& app, Command& chosen) {
  add_serve(app, chosen);
  add_command(app, chosen, "keygen", "Print a new API key for strata serve",
              "Examples:\n"
              "  strata keygen > keys && chmod 600 keys\n"
              "  strata keygen --hash >> keys",
              run_keygen);
  add_command(app, chosen, "backup",
              "Write a server's data directory to one file; the server may run meanwhile",
              "Example:\n  strata backup --data state --out state.tar", run_backup);
  add_command(app, chosen, "restore", "Make a data directory from a backup",
              "Example:\n  strata restore --in state.tar --data state", run_restore);
  add_command(app, chosen, "check",
              "Say whether a data directory is whole; exit code 2 when it is not",
              "Example:\n  strata check --data state", run_check);
}

int exit_code(const Error& error) {
  switch (error.code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kNotFound:
    case ErrorCode::kUnsupported:
      return 2;
    case ErrorCode::kResourceExhausted:
    case ErrorCode::kIo:
      return 1;
  }
  return 1;
}

int run(int argc, char** argv) {
  CLI::App app{"Strata trains and serves decoder-only language models"};
  app.set_version_flag("--version", [] {
    return fmt::format("strata 0.1.0, CPU path {}", cpu_path_name(choose_cpu_path()));
  });
  app.require_subcommand(1);
  Command chosen;
  add_commands_of_models(app, chosen);
  add_commands_of_servers(app, chosen);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return chosen();
}

}  // namespace
}  // namespace strata::apps

int main(int argc, char** argv) {
  try {
    strata::set_log_level(strata::env_log_level());
    return strata::apps::run(argc, argv);
  } catch (const strata::Error& error) {
    fmt::print(stderr, "strata: {}\n", error.what());
    return strata::apps::exit_code(error);
  } catch (const std::exception& error) {
    fmt::print(stderr, "strata: {}\n", error.what());
    return 1;
  }
}
