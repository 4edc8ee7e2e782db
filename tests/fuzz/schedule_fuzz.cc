// SPDX-License-Identifier: Apache-2.0
// A schedule's CSV: whatever it holds, a table or an Error; a table is written and read again as it
// is, the verifier answers, and what it accepts is lowered and walked.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "schedule/csv.h"
#include "schedule/lower.h"
#include "schedule/verify.h"
#include "schedule/walk.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace strata::schedule;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  Table table;
  try {
    table = read_csv(text, "fuzz").table;
  } catch (const strata::Error&) {
    return 0;
  }
  const std::string written = csv_text(table);
  // A W without any I is read as the older form's.
  const bool is_ambiguous =
      written.find('W') != std::string::npos && written.find('I') == std::string::npos;
  if (!is_ambiguous) require(csv_text(read_csv(written, "fuzz").table) == written);
  if (verify(table)) return 0;
  const Table lowered = has_transfers(table) ? table : lower(table);
  require(!verify(lowered));
  const double share = walk(lowered, {}).bubble_share;
  require(share >= 0 && share < 1);
  return 0;
}
