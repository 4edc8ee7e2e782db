// SPDX-License-Identifier: Apache-2.0
// The base model that a body names, among those that are served.
#pragma once
#include <string>

#include "server/tinker/base_names.h"
#include "text/json_body.h"

namespace strata::server {

// Throws Error for a name that is none, with those that are.
const BaseName& require_base(const BaseNames& names, const text::Fields& body,
                             const std::string& name);
// The base of that name for training: an adapter of the operator's is refused.
const BaseName& require_trainable(const BaseNames& names, const text::Fields& body,
                                  const std::string& name);

}  // namespace strata::server
