// SPDX-License-Identifier: Apache-2.0
// Parquet files, which are not read here: how Python's pyarrow makes JSONL of one.
#pragma once
#include <string>
#include <string_view>

namespace strata::data {

// A Python program that writes the rows of the file that its argument names to stdout, as JSONL.
inline constexpr std::string_view kParquetProgram =
    "import json, sys, pyarrow.parquet as p; "
    "[print(json.dumps(r, default=str)) for b in p.ParquetFile(sys.argv[1]).iter_batches() "
    "for r in b.to_pylist()]";

// "x.jsonl" of "x.parquet".
std::string jsonl_name_of_parquet(std::string_view path);
// The line of a shell that makes it.
std::string parquet_command(std::string_view path);

}  // namespace strata::data
