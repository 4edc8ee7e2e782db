// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/operations/base_model.h"

#include <fmt/format.h>

namespace strata::server {
namespace {

constexpr size_t kMaxBaseName = 255;

}  // namespace

const BaseName& require_base(const BaseNames& names, const text::Fields& body,
                             const std::string& name) {
  if (name.size() > kMaxBaseName) {
    body.fail("base_model",
              fmt::format("has {} bytes, the limit is {}", name.size(), kMaxBaseName));
  }
  const BaseName* base = names.find(name);
  if (base != nullptr) return *base;
  std::vector<std::string_view> known;
  for (const BaseName& row : names.names()) known.emplace_back(row.name);
  body.fail("base_model", fmt::format("'{}' is not served here; this server has: {}",
                                      name.substr(0, 200), fmt::join(known, ", ")));
}

const BaseName& require_trainable(const BaseNames& names, const text::Fields& body,
                                  const std::string& name) {
  const BaseName& base = require_base(names, body, name);
  if (base.adapter.empty()) return base;
  body.fail("base_model",
            fmt::format("'{}' is an adapter that this server samples and does not train; train its "
                        "base model '{}'",
                        name.substr(0, 200), names.base_of(base).name));
}

}  // namespace strata::server
