// SPDX-License-Identifier: Apache-2.0
#include "server/checkpoints/row_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "server/checkpoints/tinker_path.h"
#include "server/http/message.h"
#include "server/keys.h"
#include "text/unicode/unicode.h"

namespace strata::server {

bool is_hex(std::string_view text, size_t size) {
  return text.size() == size &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool is_path_part(std::string_view text) {
  return !text.empty() && text.size() <= 100 && text != "." && text != ".." &&
         text.find_first_not_of(
             "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
             "0123456789._:-") == std::string_view::npos;
}

bool fits_column(std::string_view table, std::string_view column, std::string_view text) {
  if (!text::is_valid_utf8(text)) return false;
  if (column == "tenant" || (table == "tenants" && column == "name")) return valid_tenant(text);
  if (column == "session_id" || column == "run_id") return is_path_part(text);
  if (column == "id") return table == "stability_prompts" || is_path_part(text);
  if (column == "kind") return parse_kind(text).has_value();
  if (column != "state") return true;
  constexpr std::array<std::string_view, 3> kSession = {"active", "finished", "timed_out"};
  constexpr std::array<std::string_view, 4> kRun = {"live", "unloaded", "lost", "copy"};
  const auto stands_in = [&](const auto& names) {
    return std::ranges::find(names, text) != names.end();
  };
  return table == "sessions" ? stands_in(kSession) : stands_in(kRun);
}

bool makes_a_folder(const RowNames& row) {
  return is_hex(row.id, 32) && valid_tenant(row.tenant) && is_path_part(row.run_id) &&
         parse_kind(row.kind).has_value();
}

std::string fault_of(const RowNames& row) {
  if (makes_a_folder(row) && is_valid_checkpoint_name(row.name)) return "";
  const auto shown = [](const std::string& text) { return one_word(text.substr(0, 100)); };
  return fmt::format(
      "a row that no server wrote: checkpoint '{}' of tenant '{}', run '{}', kind '{}', name '{}'",
      shown(row.id), shown(row.tenant), shown(row.run_id), shown(row.kind), shown(row.name));
}

}  // namespace strata::server
