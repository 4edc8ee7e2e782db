// SPDX-License-Identifier: Apache-2.0
// The command line of `strata serve`, from the table of server/tinker/options/options.h, joined
// with environment and file.
#pragma once
#include <memory>
#include <string>

#include "server/tinker/keys.h"
#include "server/tinker/options/options.h"

namespace strata::apps {

struct ServeCommandLine {
  server::OptionSource source;
  std::string config;    // --config, or empty
  bool verbose = false;  // the whole memory plan at the start
  std::string model;     // the word that is no option, or empty
  OptionTable rows;      // those of serve, which keep what is given in `source`, and these
};

// Its rows are filled when the command line is read (apps/command_line.h).
std::shared_ptr<ServeCommandLine> make_serve_command_line();

// Command line, STRATA_* environment, file, default, in this order; warns of what is doubtful. A
// model's directory alone, where no keys are given and only this machine can reach the server,
// stands for --model NAME=DIR --no-keys --data ./strata-NAME; ServeOptions::stands_for says so.
server::ServeOptions read_serve_options(const ServeCommandLine& line);

// As apps/resolve_paths.h has it of other commands' options; of NAME=DIR. A model of the hub has
// its name there as tokenizer_id where none was given.
void resolve_paths(server::ServeOptions& o);

// The keys that the options name, with a warning for each doubtful one. Again at SIGHUP.
server::KeyRing read_keys(const server::ServeOptions& options);

}  // namespace strata::apps
