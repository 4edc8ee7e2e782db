// SPDX-License-Identifier: Apache-2.0
// tinker://<run>/(weights|sampler_weights|external_weights)/<name>: the name of a checkpoint.
// Parsed and looked up, never opened.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "server/store/state/store.h"

namespace strata::server {

struct TinkerPath {
  std::string run_id;
  CheckpointKind kind = CheckpointKind::kWeights;
  std::string name;

  [[nodiscard]] std::string text() const;
  [[nodiscard]] std::string checkpoint_id() const;  // "weights/name"
};

// A tenant's name: [A-Za-z0-9._-]{1,64}, so that it may be a folder; neither "." nor "..", nor the
// name of the mark that is next to them, "fingerprint".
bool valid_tenant(std::string_view name);

// Throws Error{kInvalidArgument} that shows the text and the form.
TinkerPath parse_tinker_path(std::string_view text);
TinkerPath path_of(const CheckpointRow& row);

std::optional<CheckpointKind> parse_checkpoint_kind(std::string_view text);
// [A-Za-z0-9._-]{1,255}, and not dots alone.
bool is_valid_checkpoint_name(std::string_view name);
// [A-Za-z0-9._-]{1,255}, not dots alone; throws Error that names `field`.
void check_checkpoint_name(std::string_view field, std::string_view name);

}  // namespace strata::server
