// SPDX-License-Identifier: Apache-2.0
#include "server/store/checkpoints/tinker_path.h"

#include <fmt/format.h>

#include "base/ascii.h"
#include "base/error.h"
#include "server/store/shown_text.h"

namespace strata::server {
namespace {

constexpr size_t kMaxName = 255;

constexpr size_t kShown = 100;  // bytes of a text in messages

}  // namespace

bool is_valid_checkpoint_name(std::string_view name) {
  if (name.empty() || name.size() > kMaxName) return false;
  if (name.find_first_not_of('.') == std::string_view::npos) return false;
  return is_plain(name);
}

bool valid_tenant(std::string_view name) {
  if (name.empty() || name.size() > 64 || name == "." || name == "..") return false;
  if (name == "fingerprint") return false;  // a file next to the tenants' folders
  return is_plain(name);
}

std::string TinkerPath::checkpoint_id() const {
  return fmt::format("{}/{}", kind_name(kind), name);
}

std::string TinkerPath::text() const {
  return fmt::format("tinker://{}/{}", run_id, checkpoint_id());
}

std::optional<CheckpointKind> parse_checkpoint_kind(std::string_view text) {
  for (const CheckpointKind kind :
       {CheckpointKind::kWeights, CheckpointKind::kSampler, CheckpointKind::kExternal}) {
    if (kind_name(kind) == text) return kind;
  }
  return std::nullopt;
}

TinkerPath parse_tinker_path(std::string_view text) {
  constexpr std::string_view kScheme = "tinker://";
  const auto fail = [&] {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("path: got '{}', want tinker://<run>/"
                            "(weights|sampler_weights|external_weights)/<name>",
                            shown_text(text, kShown)));
  };
  if (!text.starts_with(kScheme)) fail();
  const std::string_view rest = text.substr(kScheme.size());
  const size_t first = rest.find('/');
  const size_t second = first == std::string_view::npos ? first : rest.find('/', first + 1);
  if (second == std::string_view::npos || first == 0 || first > kMaxName) fail();
  const auto kind = parse_checkpoint_kind(rest.substr(first + 1, second - first - 1));
  const std::string_view name = rest.substr(second + 1);
  if (!kind.has_value() || !is_valid_checkpoint_name(name)) fail();
  return {std::string(rest.substr(0, first)), *kind, std::string(name)};
}

TinkerPath path_of(const CheckpointRow& row) { return {row.run_id, row.kind, row.name}; }

void check_checkpoint_name(std::string_view field, std::string_view name) {
  if (is_valid_checkpoint_name(name)) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: name '{}': want [A-Za-z0-9._-]{{1,255}}, and not dots alone", field,
                          shown_text(name, kShown)));
}

}  // namespace strata::server
