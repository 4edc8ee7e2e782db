// SPDX-License-Identifier: Apache-2.0
#include "server/store/checkpoints/row_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "base/ascii.h"
#include "server/store/checkpoints/tinker_path.h"
#include "server/store/state/store.h"
#include "text/unicode/unicode.h"

namespace strata::server {

bool is_hex(std::string_view text, size_t size) {
  return text.size() == size &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool is_path_part(std::string_view text) {
  return !text.empty() && text.size() <= 100 && text != "." && text != ".." && is_plain(text, ":");
}

bool fits_column(std::string_view table, std::string_view column, std::string_view text) {
  if (!text::is_valid_utf8(text)) return false;
  if (column == "tenant" || (table == "tenants" && column == "name")) return valid_tenant(text);
  if (column == "session_id" || column == "run_id") return is_path_part(text);
  if (column == "id") return table == "stability_prompts" || is_path_part(text);
  if (column == "kind") return parse_checkpoint_kind(text).has_value();
  if (column != "state") return true;
  const auto stands_in = [&](std::span<const char* const> states) {
    return std::ranges::any_of(states, [&](const char* state) { return text == state; });
  };
  return table == "sessions" ? stands_in(kSessionStates) : stands_in(kRunStates);
}

bool makes_a_folder(const RowNames& row) {
  return is_hex(row.id, 32) && valid_tenant(row.tenant) && is_path_part(row.run_id) &&
         parse_checkpoint_kind(row.kind).has_value();
}

std::string folder_of_row(const RowNames& row) {
  return fmt::format("{}/{}/{}/{}", row.tenant, row.run_id, row.kind, row.id);
}

std::string find_name_fault(const RowNames& row) {
  if (makes_a_folder(row) && is_valid_checkpoint_name(row.name)) return "";
  const auto shown = [](const std::string& text) { return percent_escaped(text.substr(0, 100)); };
  return fmt::format(
      "a row that no server wrote: checkpoint '{}' of tenant '{}', run '{}', kind '{}', name '{}'",
      shown(row.id), shown(row.tenant), shown(row.run_id), shown(row.kind), shown(row.name));
}

}  // namespace strata::server
