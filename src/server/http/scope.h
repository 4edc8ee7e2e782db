// SPDX-License-Identifier: Apache-2.0
// Scope: what a key may do. Each includes those before it. Every key may open, keep and end a
// session, since the official SDK does so before it reads anything.
#pragma once
#include <cstdint>
#include <string_view>

namespace strata::server {

enum class Scope : uint8_t {
  kRead,    // poll, list, download
  kSample,  // sampling sessions and samples too
  kAll,     // train, save, change and delete too
};

// As keys' files write it; empty for kAll, which has no word.
constexpr std::string_view scope_name(Scope scope) {
  switch (scope) {
    case Scope::kRead:
      return "read-only";
    case Scope::kSample:
      return "sample-only";
    case Scope::kAll:
      return "";
  }
  return "";
}

}  // namespace strata::server
