// SPDX-License-Identifier: Apache-2.0
// Strong ids of the nouns that travel: a session id cannot be passed where a model id belongs. Text
// made by the server, never by a client; compared and hashed as text.
#pragma once
#include <compare>
#include <cstdint>
#include <functional>
#include <string>

namespace strata::api {

template <typename Tag>
struct Id {
  std::string text;

  [[nodiscard]] bool empty() const { return text.empty(); }
  friend bool operator==(const Id&, const Id&) = default;
  friend auto operator<=>(const Id&, const Id&) = default;
};

using TenantId = Id<struct TenantTag>;
using SessionId = Id<struct SessionTag>;
using ModelId = Id<struct ModelTag>;        // a training run: "<session>:train:<n>"
using RequestId = Id<struct RequestTag>;    // names a future
using SnapshotId = Id<struct SnapshotTag>;  // names fixed sampler weights: the same bits for ever

// A base model of this process: its index in the table that apps/serve loads.
enum class BaseId : int32_t {};

}  // namespace strata::api

template <typename Tag>
struct std::hash<strata::api::Id<Tag>> {
  size_t operator()(const strata::api::Id<Tag>& id) const noexcept {
    return std::hash<std::string>()(id.text);
  }
};
