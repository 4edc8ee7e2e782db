// SPDX-License-Identifier: Apache-2.0
// A file that is one JSON array.
#include "tests/fuzz/fuzz_dir.h"
#include "tests/fuzz/records.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  static const strata::fuzz::FuzzDir dir;
  dir.write("x", "[" + std::string(reinterpret_cast<const char*>(bytes), size));
  strata::fuzz::read_all(dir.path() + "/x", strata::data::Layout::kArray);
  return 0;
}
