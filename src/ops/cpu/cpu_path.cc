// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/cpu_path.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/env.h"
#include "base/error.h"
#include "ops/cpu/path_table.h"
#include "ops/cpu/tiles.h"

namespace strata {
std::string_view cpu_path_name(CpuPath path) { return ops::cpu::path_row(path).name; }

bool cpu_path_supported(CpuPath path) { return ops::cpu::path_row(path).is_supported(); }

std::string describe_cpu_path(CpuPath path) {
  const ops::cpu::PathRow& row = ops::cpu::path_row(path);
  std::string text(row.name);
  if (!row.engine.empty()) text += fmt::format(" by {}", row.engine);
  const std::string& reason = ops::cpu::why_no_tiles();
  return reason.empty() ? text : fmt::format("{}, no tiles: {}", text, reason);
}

std::vector<CpuPath> fast_cpu_paths() {
  std::vector<CpuPath> paths;
  for (const ops::cpu::PathRow& row : ops::cpu::path_rows()) {
    const bool is_fast = row.path != CpuPath::kReference && row.is_automatic;
    if (is_fast && row.is_supported()) paths.push_back(row.path);
  }
  return paths;
}

namespace {

CpuPath path_named(const std::string& name) {
  const auto rows = ops::cpu::path_rows();
  const auto row = std::ranges::find_if(
      rows, [&](const auto& of) { return name == of.name || name == of.full_name(); });
  if (row == rows.end()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("STRATA_CPU_PATH: got '{}', want amx, avx512_bf16, avx512, avx2 or reference",
                    name));
  }
  return row->path;
}

void check_supported(CpuPath path, CpuPath best) {
  if (cpu_path_supported(path)) return;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("STRATA_CPU_PATH: this CPU cannot run '{}'; unset it to use '{}'",
                          cpu_path_name(path), cpu_path_name(best)));
}

}  // namespace

CpuPath choose_cpu_path() {
  const std::string wanted = env_cpu_path();
  const CpuPath best = std::ranges::find_if(ops::cpu::path_rows(), [](const auto& row) {
                         return row.is_automatic && row.is_supported();
                       })->path;
  if (wanted.empty()) return best;
  const CpuPath path = path_named(wanted);
  check_supported(path, best);
  return path;
}

}  // namespace strata
