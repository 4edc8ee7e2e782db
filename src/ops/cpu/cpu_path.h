// SPDX-License-Identifier: Apache-2.0
// CpuPath: which of a CPU's instructions kernels use. Any thread.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace strata {

// Best first. Equalities of bits hold within one path; between paths there are tolerances.
enum class CpuPath { kAmx, kAvx512Bf16, kAvx512, kAvx2, kReference };

std::string_view cpu_path_name(CpuPath path);
// What this machine can run.
bool cpu_path_supported(CpuPath path);
// The path for people: its name, the engine of `amx`, and why there are no tiles where there are
// none.
std::string describe_cpu_path(CpuPath path);
// The paths that this machine may take by itself, but for the reference.
std::vector<CpuPath> fast_cpu_paths();
// The path in use: STRATA_CPU_PATH if set (an Error if unknown or unsupported), else the best
// supported.
CpuPath choose_cpu_path();

}  // namespace strata
