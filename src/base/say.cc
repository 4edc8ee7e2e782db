// SPDX-License-Identifier: Apache-2.0
#include "base/say.h"

#include <csignal>
#include <cstdio>

namespace strata {
namespace {

// Whoever might be told of a failure is who does not listen.
void write_to(std::FILE* out, std::string_view text) {
  [[maybe_unused]] const size_t written = std::fwrite(text.data(), 1, text.size(), out);
  std::fflush(out);
}

}  // namespace

void ignore_closed_pipes() { std::signal(SIGPIPE, SIG_IGN); }

void say(std::string_view text) { write_to(stderr, text); }

void print_result(std::string_view text) { write_to(stdout, text); }

}  // namespace strata
