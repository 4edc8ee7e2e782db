// SPDX-License-Identifier: Apache-2.0
// ThisPath: the path that a file is compiled for. CMake compiles each <op>_impl.cc once for every
// path, with the path's instructions and its name (ops/CMakeLists.txt); the file ends with what it
// instantiates for it.
#pragma once
#if defined(STRATA_PATH_AVX512)
#include "ops/cpu/simd_avx512.h"
#elif defined(STRATA_PATH_AVX2)
#include "ops/cpu/simd_avx2.h"
#elif defined(STRATA_PATH_REFERENCE)
#include "ops/cpu/simd_scalar.h"
#else
#error "ops/CMakeLists.txt names the path"
#endif

namespace strata::ops::cpu {

#if defined(STRATA_PATH_AVX512)
using ThisPath = Avx512;
#elif defined(STRATA_PATH_AVX2)
using ThisPath = Avx2;
#else
using ThisPath = Scalar;
#endif

}  // namespace strata::ops::cpu
