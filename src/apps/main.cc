// The program: options to commands. Wiring only. Exit codes: 0 done, 2 a fault of the request, an
// option or a file, 1 anything else.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <functional>

#include "apps/backup.h"
#include "apps/bench.h"
#include "apps/chat.h"
#include "apps/generate.h"
#include "apps/init.h"
#include "apps/inspect.h"
#include "apps/probe.h"
#include "apps/serve.h"
#include "apps/serve_options.h"
#include "apps/tokenize.h"
#include "apps/train.h"
#include "backend/backend.h"
#include "base/env.h"
#include "base/error.h"
#include "base/log.h"
#include "server/keys.h"

namespace strata::apps {
namespace {

using Command = std::function<int()>;

constexpr const char* kRecomputeHelp =
    "of activations, in backward: none, full, minimal, minimal_with_context, "
    "save_dot_with_context_except_mlp, save_dot_except_mlp, save_dot_except_mlpwi, save_qkv_proj, "
    "save_out_proj, or custom:TAG,TAG of what is kept";

void add_probe(CLI::App& app, Command& chosen) {
  auto* command =
      app.add_subcommand("probe", "Run a model on given token ids and write what it computed");
  auto options = std::make_shared<ProbeOptions>();
  command->add_option("--model", options->model, "Hugging Face directory")->required();
  command->add_option("--adapter", options->adapters,
                      "PEFT LoRA directory; may be repeated, the first is adapter 1");
  command
      ->add_option("--request", options->request, "JSON file: sequences, loss, want, train, sample")
      ->required();
  command->add_option("--out", options->out, "safetensors file to write")->required();
  command->add_option("--dtype", options->dtype, "f32 or bf16")->capture_default_str();
  command->add_option("--recompute", options->recompute, kRecomputeHelp)->capture_default_str();
  command->add_option("--threads", options->threads, "0: all cores")->capture_default_str();
  command->add_option("--device", options->device, "cpu")->capture_default_str();
  command->add_flag("--strict-config", options->strict_config,
                    "unknown keys of config.json are errors");
  command->footer(
      "Example:\n  strata probe --model tiny-llama --adapter a --request r.json --out "
      "o.safetensors --threads 1");
  command->callback([&chosen, options] { chosen = [options] { return run_probe(*options); }; });
}

void add_bench(CLI::App& app, Command& chosen) {
  auto* command = app.add_subcommand(
      "bench", "Measure training, prefill or decoding against this machine's limits");
  auto options = std::make_shared<BenchOptions>();
  command->add_option("work", options->work, bench_works())->required();
  command->add_option("--model", options->model,
                      "Hugging Face directory; default: Qwen3-0.6B's shape with random weights");
  command->add_option("--dtype", options->dtype, "f32, bf16 or auto")->capture_default_str();
  command->add_option("--recompute", options->recompute,
                      "of a training work, in place of its own; as in train");
  command->add_option("--threads", options->threads, "0: all cores")->capture_default_str();
  command->add_option("--repeat", options->repeat, "timed repetitions; the median counts")
      ->capture_default_str();
  command->add_flag("--json", options->json, "print one JSON object");
  command->footer("Example:\n  strata bench train_s512 --json");
  command->callback([&chosen, options] { chosen = [options] { return run_bench(*options); }; });
}

void add_train_recipe(CLI::App& command, TrainOptions& o) {
  command.add_option("--lr", o.lr, "peak learning rate [2e-4; full: 1e-5]");
  command.add_option("--schedule", o.schedule, "constant, linear or cosine")->capture_default_str();
  command.add_option("--warmup-steps", o.warmup_steps, "steps of linear warm-up")
      ->capture_default_str();
  command.add_option("--beta1", o.beta1, "AdamW")->capture_default_str();
  command.add_option("--beta2", o.beta2, "AdamW")->capture_default_str();
  command.add_option("--eps", o.eps, "AdamW")->capture_default_str();
  command.add_option("--weight-decay", o.weight_decay, "decoupled; AdamW")->capture_default_str();
  command.add_option("--clip", o.clip, "largest gradient norm; 0: off")->capture_default_str();
  command.add_option("--epochs", o.epochs, "passes over the data")->capture_default_str();
  command.add_option("--steps", o.steps, "optimizer steps; 0: by --epochs")->capture_default_str();
  command.add_option("--batch-tokens", o.batch_tokens, "tokens of an optimizer step, at most")
      ->capture_default_str();
  command.add_option("--micro-tokens", o.micro_tokens, "tokens of a pass, at most; saves memory")
      ->capture_default_str();
  command.add_option("--max-length", o.max_length, "longer examples are dropped and counted")
      ->capture_default_str();
  command.add_option("--seed", o.seed, "of adapter, order and split")->capture_default_str();
}

void add_train(CLI::App& app, Command& chosen) {
  auto* command = app.add_subcommand("train", "Fine-tune a model on a JSONL file");
  auto options = std::make_shared<TrainOptions>();
  TrainOptions& o = *options;
  command->add_option("--model", o.model, "Hugging Face directory")->required();
  command
      ->add_option("--data", o.data,
                   "JSONL: {\"prompt\",\"completion\"}, {\"text\"} or {\"messages\"} a line")
      ->required();
  command->add_option("--out", o.out, "folder of the adapter or model, metrics and state")
      ->required();
  command->add_option("--method", o.method, "lora or full")->capture_default_str();
  command->add_option("--rank", o.rank, "LoRA rank")->capture_default_str();
  command->add_option("--alpha", o.alpha, "LoRA alpha")->capture_default_str();
  command
      ->add_option("--expert-rank", o.expert_rank,
                   "of routed experts: divided (max(1, rank / experts)) or full")
      ->capture_default_str();
  command
      ->add_option("--targets", o.targets,
                   "all-linear, or module names with commas; embed_tokens and lm_head too")
      ->capture_default_str();
  command->add_option("--train-on", o.train_on, "of messages: last or all assistant turns")
      ->capture_default_str();
  add_train_recipe(*command, o);
  command->add_option("--eval", o.eval, "JSONL of held-out examples");
  command->add_option("--eval-fraction", o.eval_fraction, "else: share of --data to hold out")
      ->capture_default_str();
  command->add_option("--save-every", o.save_every, "steps; 0: at the end only")
      ->capture_default_str();
  command->add_flag("--resume", o.resume, "continue from the last save in --out");
  command->add_option("--dtype", o.dtype, "auto, bf16 or f32")->capture_default_str();
  command->add_option("--memory", o.memory,
                      "bytes of the whole run (12GiB): passes and what they keep are chosen so");
  command->add_option("--recompute", o.recompute, kRecomputeHelp)->capture_default_str();
  command->add_option("--threads", o.threads, "0: all cores")->capture_default_str();
  command->add_option("--device", o.device, "cpu")->capture_default_str();
  command->add_flag("--strict-config", o.strict_config, "unknown keys of config.json are errors");
  command->add_flag("--json", o.json, "a line of JSON on stdout at the end");
  command->footer(
      "Examples:\n"
      "  strata train --model qwen3 --data chats.jsonl --out adapter\n"
      "  strata train --model qwen3 --data chats.jsonl --out adapter --resume\n"
      "  strata train --model qwen3 --data text.jsonl --out tuned --method full --lr 2e-5");
  command->callback([&chosen, options] { chosen = [options] { return run_train(*options); }; });
}

void add_generation(CLI::App& command, GenerationOptions& o) {
  command.add_option("--model", o.model, "Hugging Face directory")->required();
  command.add_option("--adapter", o.adapter, "PEFT LoRA directory");
  command.add_option("--max-tokens", o.max_tokens, "of an answer, at most")->capture_default_str();
  command.add_option("--temperature", o.temperature, "0: greedy")->capture_default_str();
  command.add_option("--top-k", o.top_k, "0: off")->capture_default_str();
  command.add_option("--top-p", o.top_p, "1: off")->capture_default_str();
  command.add_option("--seed", o.seed, "drawn and printed when absent");
  command.add_option("--stop", o.stop, "a text that ends the answer; may be repeated")
      ->allow_extra_args(false);
  command.add_option("--dtype", o.dtype, "auto, bf16 or f32")->capture_default_str();
  command.add_option("--threads", o.threads, "0: all cores")->capture_default_str();
  command.add_option("--device", o.device, "cpu")->capture_default_str();
  command.add_flag("--strict-config", o.strict_config, "unknown keys of config.json are errors");
}

void add_generate(CLI::App& app, Command& chosen) {
  auto* command = app.add_subcommand("generate", "Continue a prompt");
  auto options = std::make_shared<GenerateOptions>();
  command->add_option("--prompt", options->prompt, "text to continue")->required();
  add_generation(*command, options->generation);
  command->add_flag("--echo", options->echo, "print the prompt too");
  command->add_flag("--json", options->json, "one line of JSON at the end instead of a stream");
  command->footer(
      "Examples:\n"
      "  strata generate --model qwen3 --prompt \"Once upon a time\" --max-tokens 64\n"
      "  strata generate --model qwen3 --adapter adapter --prompt \"Q: 2 + 2\" --temperature 0");
  command->callback([&chosen, options] { chosen = [options] { return run_generate(*options); }; });
}

void add_chat(CLI::App& app, Command& chosen) {
  auto* command = app.add_subcommand("chat", "Talk to a model through its chat template");
  auto options = std::make_shared<ChatOptions>();
  command->add_option("--prompt", options->prompt, "one question; absent: a line of stdin a turn");
  command->add_option("--system", options->system, "a system turn before all");
  command->add_option("--vars", options->vars,
                      "JSON of variables for the template, like {\"enable_thinking\": false}");
  add_generation(*command, options->generation);
  command->footer(
      "Examples:\n"
      "  strata chat --model qwen3 --adapter adapter\n"
      "  strata chat --model qwen3 --prompt \"Who are you?\" --temperature 0");
  command->callback([&chosen, options] { chosen = [options] { return run_chat(*options); }; });
}

void add_inspect(CLI::App& app, Command& chosen) {
  auto* command = app.add_subcommand("inspect", "Say what a checkpoint holds and what is wrong");
  auto options = std::make_shared<InspectOptions>();
  command->add_option("--model", options->model, "Hugging Face directory")->required();
  command->add_flag("--tensors", options->tensors, "list every tensor");
  command->add_flag("--strict-config", options->strict_config,
                    "unknown keys of config.json are errors");
  command->add_flag("--json", options->json, "one line of JSON");
  command->footer("Example:\n  strata inspect --model qwen3 --tensors");
  command->callback([&chosen, options] { chosen = [options] { return run_inspect(*options); }; });
}

void add_tokenize(CLI::App& app, Command& chosen) {
  auto* command =
      app.add_subcommand("tokenize", "JSON lines: text to ids, ids to text, conversations to text");
  auto options = std::make_shared<TokenizeOptions>();
  command->add_option("--tokenizer", options->tokenizer, "model directory or tokenizer.json")
      ->required();
  command->add_option("--in", options->in, "JSONL file to read")->required();
  command->add_option("--out", options->out, "JSONL file to write")->required();
  command->footer(
      "Example:\n  strata tokenize --tokenizer models/tiny --in texts.jsonl --out ids.jsonl");
  command->callback([&chosen, options] { chosen = [options] { return run_tokenize(*options); }; });
}

void add_init(CLI::App& app, Command& chosen) {
  auto* command = app.add_subcommand("init", "Write a checkpoint with random weights");
  auto options = std::make_shared<InitOptions>();
  command
      ->add_option("--config", options->config,
                   "model directory, config.json, or one of: " + named_configs())
      ->required();
  command->add_option("--out", options->out, "folder to write")->required();
  command->add_option("--dtype", options->dtype, "auto (as configured), bf16 or f32")
      ->capture_default_str();
  command->add_option("--seed", options->seed, "")->capture_default_str();
  command->add_option("--threads", options->threads, "0: all cores")->capture_default_str();
  command->footer("Example:\n  strata init --config qwen3-0.6b --out random --seed 1");
  command->callback([&chosen, options] { chosen = [options] { return run_init(*options); }; });
}

void add_serve(CLI::App& app, Command& chosen) {
  auto* command = app.add_subcommand("serve", "Serve models over the Tinker API to many tenants");
  const std::shared_ptr<ServeCommandLine> line = add_serve_options(*command);
  command->callback(
      [&chosen, line] { chosen = [line] { return run_serve(read_serve_options(*line)); }; });
}

void add_keygen(CLI::App& app, Command& chosen) {
  auto* command = app.add_subcommand("keygen", "Print a new API key for strata serve");
  auto is_hashed = std::make_shared<bool>(false);
  command->add_flag("--hash", *is_hashed,
                    "print the key's hash for the file of keys, and the key itself to stderr");
  command->footer(
      "Examples:\n"
      "  strata keygen > keys && chmod 600 keys\n"
      "  strata keygen --hash >> keys");
  command->callback([&chosen, is_hashed] {
    chosen = [is_hashed] {
      const std::string key = server::generate_key();
      if (*is_hashed) fmt::print(stderr, "{}\n", key);
      fmt::print("{}\n", *is_hashed ? server::hashed_key(key) : key);
      return 0;
    };
  });
}

void add_backup(CLI::App& app, Command& chosen) {
  auto* command = app.add_subcommand(
      "backup", "Write a server's data directory to one file; the server may run meanwhile");
  auto options = std::make_shared<BackupOptions>();
  command->add_option("--data", options->data, "data directory of strata serve")->required();
  command->add_option("--out", options->file, "file to write; it holds the directory's secret")
      ->required();
  command->footer("Example:\n  strata backup --data state --out state.tar");
  command->callback([&chosen, options] { chosen = [options] { return run_backup(*options); }; });
}

void add_restore(CLI::App& app, Command& chosen) {
  auto* command = app.add_subcommand("restore", "Make a data directory from a backup");
  auto options = std::make_shared<BackupOptions>();
  command->add_option("--in", options->file, "file of strata backup")->required();
  command->add_option("--data", options->data, "directory to make; not there, or empty")
      ->required();
  command->footer("Example:\n  strata restore --in state.tar --data state");
  command->callback([&chosen, options] { chosen = [options] { return run_restore(*options); }; });
}

void add_check(CLI::App& app, Command& chosen) {
  auto* command = app.add_subcommand(
      "check", "Say whether a data directory is whole; exit code 2 when it is not");
  auto data = std::make_shared<std::string>();
  command->add_option("--data", *data, "data directory of strata serve")->required();
  command->footer("Example:\n  strata check --data state");
  command->callback([&chosen, data] { chosen = [data] { return run_check(*data); }; });
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
  add_train(app, chosen);
  add_generate(app, chosen);
  add_chat(app, chosen);
  add_inspect(app, chosen);
  add_probe(app, chosen);
  add_init(app, chosen);
  add_tokenize(app, chosen);
  add_bench(app, chosen);
  add_serve(app, chosen);
  add_keygen(app, chosen);
  add_backup(app, chosen);
  add_restore(app, chosen);
  add_check(app, chosen);
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
