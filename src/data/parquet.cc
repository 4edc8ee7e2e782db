// SPDX-License-Identifier: Apache-2.0
#include "data/parquet.h"

#include <fmt/format.h>

namespace strata::data {
namespace {

// A name with anything in it, quoted for a shell.
std::string quoted(std::string_view name) {
  std::string out = "'";
  for (const char c : name) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace

std::string jsonl_name_of_parquet(std::string_view path) {
  constexpr std::string_view kSuffix = ".parquet";
  if (path.ends_with(kSuffix)) path.remove_suffix(kSuffix.size());
  return std::string(path) + ".jsonl";
}

std::string parquet_command(std::string_view path) {
  return fmt::format("python3 -c \"{}\" {} > {}", kParquetProgram, quoted(path),
                     quoted(jsonl_name_of_parquet(path)));
}

}  // namespace strata::data
