// SPDX-License-Identifier: Apache-2.0
// A file of CSV; its first byte chooses the separator.
#include "tests/fuzz/fuzz_dir.h"
#include "tests/fuzz/records.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using strata::data::Layout;
  if (size == 0) return 0;
  static const strata::fuzz::FuzzDir dir;
  dir.write("x", std::string_view(reinterpret_cast<const char*>(bytes) + 1, size - 1));
  strata::fuzz::read_all(dir.path() + "/x", bytes[0] % 2 == 0 ? Layout::kCsv : Layout::kTsv);
  return 0;
}
