// SPDX-License-Identifier: Apache-2.0
// STRATA_SANITIZED: this build has AddressSanitizer or ThreadSanitizer (clang's, as the presets).
#pragma once

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define STRATA_SANITIZED
#endif
#endif
