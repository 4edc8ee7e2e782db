// The program: options to commands. Wiring only. Exit codes: 0 done, 2 a fault of the request, an
// option or a file, 1 anything else.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <functional>

#include "apps/probe.h"
#include "backend/backend.h"
#include "base/env.h"
#include "base/error.h"
#include "base/log.h"

namespace strata::apps {
namespace {

using Command = std::function<int()>;

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
  command->add_option("--recompute", options->recompute, "none or full")->capture_default_str();
  command->add_option("--threads", options->threads, "0: all cores")->capture_default_str();
  command->add_option("--device", options->device, "cpu")->capture_default_str();
  command->add_flag("--strict-config", options->strict_config,
                    "unknown keys of config.json are errors");
  command->footer(
      "Example:\n  strata probe --model tiny-llama --adapter a --request r.json --out "
      "o.safetensors --threads 1");
  command->callback([&chosen, options] { chosen = [options] { return run_probe(*options); }; });
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
  add_probe(app, chosen);
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
