// SPDX-License-Identifier: Apache-2.0
// Blocks of GGUF as rows of a narrow form (tensor/narrow.h): codes and scales as they are stored,
// in another order. Their values are those that the type's `dequantise` gives, rounded to bf16.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "checkpoint/gguf/types.h"
#include "tensor/narrow.h"

namespace strata {

// kNone: a type whose values are to be kept in bf16.
NarrowForm gguf_narrow_form(const GgufType& type);

// Rows of `cols` columns, whole blocks of a type that has a form. Returns what `dequantise`
// returns. `tensor_scale`: of NVFP4 Nvfp4Scale::as_sum() of the tensor's scale.
int64_t gguf_repack_rows_until_fault(const GgufType& type, const std::byte* blocks, int64_t rows,
                                     int64_t cols, std::byte* out,
                                     const std::array<float, 2>& tensor_scale = {256.0f, 0.0f});

}  // namespace strata
