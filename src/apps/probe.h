// `strata probe`: runs a model on given token ids and writes what it computed. A test instrument:
// the engine's ordinary passes with a sink, nothing of its own below.
#pragma once
#include <string>
#include <vector>

namespace strata::apps {

struct ProbeOptions {
  std::string model;
  std::vector<std::string> adapters;
  std::string request;
  std::string out;
  std::string dtype = "f32";
  std::string recompute = "none";
  std::string device = "cpu";
  int threads = 0;
  bool strict_config = false;
};

// Writes options.out, whole or not at all. Throws Error on a fault of the request or the files.
int run_probe(const ProbeOptions& options);

}  // namespace strata::apps
