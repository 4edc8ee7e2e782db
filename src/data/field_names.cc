// SPDX-License-Identifier: Apache-2.0
#include "data/field_names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/json.hpp>

#include "base/ascii.h"
#include "base/error.h"
#include "data/json_fields.h"
#include "text/json_field.h"

namespace strata::data {
namespace {

namespace json = boost::json;

constexpr std::string_view kLists[] = {"messages", "conversations", "tools", "history"};
constexpr std::string_view kTexts[] = {"prompt", "completion", "text",    "instruction",
                                       "input",  "output",     "context", "response",
                                       "system", "chosen",     "rejected"};

bool is_list(std::string_view name) { return std::ranges::find(kLists, name) != std::end(kLists); }

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, "--fields: " + what);
}

FieldName parse_pair(std::string_view pair) {
  const size_t equals = pair.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    refuse(fmt::format("got '{}', want NAME=FIELD,..., as in question=prompt,answer=completion",
                       pair));
  }
  FieldName name = {std::string(pair.substr(0, equals)), std::string(pair.substr(equals + 1))};
  const bool is_known =
      is_list(name.read_as) || std::ranges::find(kTexts, name.read_as) != std::end(kTexts);
  if (!is_known) {
    refuse(
        fmt::format("{}: '{}' is no field that data is read by; those are {}, {} (the file's "
                    "own name stands before the equals sign)",
                    pair, name.read_as, fmt::join(kTexts, ", "), fmt::join(kLists, ", ")));
  }
  return name;
}

// CSV has lists as texts.
json::value parse_csv_value(const FieldName& name, const json::value& value) {
  if (!is_list(name.read_as) || !value.is_string()) return value;
  const std::string text(value.get_string());
  return trimmed(text).starts_with('[') ? text::parse_json(text, name.in_file) : value;
}

}  // namespace

std::vector<FieldName> parse_field_names(const std::string& text) {
  std::vector<FieldName> names;
  for (size_t begin = 0; !text.empty() && begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const FieldName name = parse_pair(std::string_view(text).substr(begin, end - begin));
    for (const FieldName& other : names) {
      if (other.in_file == name.in_file || other.read_as == name.read_as)
        refuse(fmt::format("{}={}: a name stands there twice", name.in_file, name.read_as));
    }
    names.push_back(name);
    begin = end + 1;
  }
  return names;
}

std::string rename_fields(std::string_view record, const std::vector<FieldName>& names) {
  const json::value whole = text::parse_json(record, "the record");
  if (!whole.is_object()) return std::string(record);
  json::object renamed;
  for (const auto& [key, value] : whole.get_object()) {
    const std::string_view own(key.data(), key.size());
    const auto name = std::ranges::find(names, own, &FieldName::in_file);
    const std::string_view as = name == names.end() ? own : std::string_view(name->read_as);
    if (renamed.contains(as)) {
      fail_record(fmt::format("--fields: the record has two fields that are read as '{}'", as));
    }
    renamed[as] = name == names.end() ? value : parse_csv_value(*name, value);
  }
  return json::serialize(renamed);
}

}  // namespace strata::data
