// SPDX-License-Identifier: Apache-2.0
#include "server/openai/arguments_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cctype>
#include <optional>
#include <set>
#include <utility>

#include "server/openai/gemma_call.h"
#include "server/openai/json_text.h"
#include "server/openai/openai_error.h"
#include "server/openai/schema_reference.h"
#include "structured/json_schema.h"

namespace strata::server {

namespace json = boost::json;

namespace tags {

// Characters of white space next to each other in JSON: a model that may write more does so without
// end.
constexpr int kMostSpace = 1;

json::object text(const std::string& value) { return {{"type", "const_string"}, {"value", value}}; }
json::object schema(json::value of) {
  return {
      {"type", "json_schema"}, {"json_schema", std::move(of)}, {"max_whitespace_cnt", kMostSpace}};
}
json::object sequence(json::array elements) {
  return {{"type", "sequence"}, {"elements", std::move(elements)}};
}
json::object either(json::array formats) {
  if (formats.size() == 1) return formats[0].get_object();
  return {{"type", "or"}, {"elements", std::move(formats)}};
}

}  // namespace tags

namespace {

constexpr const char* kStringLimits[] = {"format", "minLength", "maxLength"};

class ParametersWriter {
 public:
  ParametersWriter(const GrammarTool& tool, std::vector<std::string>& warnings)
      : tool_(tool), warnings_(warnings), root_(parse_json_text(tool.schema).value()) {}

  json::object write(ArgumentsForm form) {
    json::array out;
    const json::value* properties = member("properties");
    if (properties != nullptr) {
      for (const auto& [key, schema] : properties->get_object()) {
        const std::string name(key);
        check_name(name);
        json::object one = form == ArgumentsForm::kDsml ? dsml_parameter(name, resolved(schema))
                                                        : parameter(name, resolved(schema));
        if (!is_required(name)) one = {{"type", "optional"}, {"content", std::move(one)}};
        out.push_back(std::move(one));
      }
    }
    if (out.empty()) return tags::text("");
    return tags::sequence(std::move(out));
  }

 private:
  [[nodiscard]] std::string path_of(const std::string& name) const {
    return structured::pointer_to("#/properties", name);
  }
  [[noreturn]] void fail(const std::string& name, const std::string& what) const {
    throw OpenAiFault(ErrorCode::kInvalidArgument,
                      fmt::format("{}: {}: {}", tool_.param, path_of(name), what), tool_.param,
                      "invalid_schema");
  }
  void check_name(const std::string& name) const {
    if (!is_bare_name(name))
      fail(name,
           "this model's form of calls has no parameters with other characters than a-z, "
           "A-Z, 0-9, _, - and .");
  }
  // What the tool's schema has under this name; null: nothing.
  [[nodiscard]] const json::value* member(const char* name) const {
    return root_.get_object().if_contains(name);
  }
  [[nodiscard]] bool is_required(const std::string& name) const {
    const json::value* required = member("required");
    return required != nullptr && std::ranges::find(required->get_array(), json::value(name)) !=
                                      required->get_array().end();
  }

  [[nodiscard]] const json::value& resolved(const json::value& schema) const {
    return follow_references(schema, root_);
  }
  // The format of a value of this schema, with the definitions that it names.
  [[nodiscard]] json::object json_value(const json::value& schema) const {
    json::value own = schema;
    if (auto* object = own.if_object()) {
      for (const char* where : {"$defs", "definitions"})
        if (const json::value* map = member(where); map != nullptr && !object->contains(where))
          (*object)[where] = *map;
    }
    return tags::schema(std::move(own));
  }

  // What enum or const lets be written, bare texts as they are; nothing without one.
  static std::optional<json::array> values_of(const json::value& schema) {
    const auto* object = schema.if_object();
    if (object == nullptr) return std::nullopt;
    if (const json::value* value = object->if_contains("const")) return json::array{*value};
    const json::value* values = object->if_contains("enum");
    return values == nullptr ? std::nullopt : std::optional(values->get_array());
  }
  static json::object bare_values(const json::array& values) {
    json::array formats;
    for (const json::value& value : values)
      formats.push_back(tags::text(value.is_string() ? json::value_to<std::string>(value)
                                                     : json::serialize(value)));
    return tags::either(std::move(formats));
  }

  // A schema that leads back to itself says nothing of its own: `seen` has those on the way.
  bool may_be_string(const json::value& of, std::set<const json::value*>& seen) const {
    const json::value& schema = resolved(of);
    if (!seen.insert(&schema).second) return false;
    const auto* object = schema.if_object();
    if (object == nullptr) return true;
    if (const json::value* type = object->if_contains("type")) {
      const json::array names = type->is_array() ? type->get_array() : json::array{*type};
      return std::ranges::find(names, json::value("string")) != names.end();
    }
    if (const auto values = values_of(schema))
      return std::ranges::any_of(*values, [](const auto& value) { return value.is_string(); });
    for (const char* name : {"anyOf", "oneOf", "allOf"}) {
      if (const json::value* list = object->if_contains(name))
        return std::ranges::any_of(list->get_array(),
                                   [&](const auto& one) { return may_be_string(one, seen); });
    }
    return !object->contains("properties") && !object->contains("items");
  }

  // Whether a string's schema says what no bare text is held to.
  static bool is_limited(const json::value& schema) {
    const auto* object = schema.if_object();
    if (object == nullptr) return false;
    if (std::ranges::any_of(kStringLimits,
                            [&](const char* name) { return object->contains(name); }))
      return true;
    for (const char* name : {"anyOf", "oneOf", "allOf"}) {
      if (const json::value* list = object->if_contains(name)) {
        if (std::ranges::any_of(list->get_array(), [](const auto& one) {
              return is_limited(one) || one.is_object() == false ||
                     one.get_object().contains("pattern") || one.get_object().contains("enum");
            }))
          return true;
      }
    }
    return false;
  }
  static bool is_plain_string(const json::value& schema) {
    const auto* object = schema.if_object();
    const json::value* type = object == nullptr ? nullptr : object->if_contains("type");
    return type != nullptr && *type == "string" && !is_limited(schema) &&
           !object->contains("pattern");
  }

  static json::object text_between(const std::string& begin, const std::string& end,
                                   const std::vector<std::string>& excludes) {
    json::array without;
    for (const std::string& each : excludes) without.push_back(json::value(each));
    return {{"type", "tag"},
            {"begin", begin},
            {"content", json::object{{"type", "any_text"}, {"excludes", std::move(without)}}},
            {"end", end}};
  }
  static json::object between(const std::string& begin, json::object value,
                              const std::string& end) {
    json::array parts;
    parts.push_back(tags::text(begin));
    parts.push_back(std::move(value));
    parts.push_back(tags::text(end));
    return tags::sequence(std::move(parts));
  }

  json::object parameter(const std::string& name, const json::value& schema) {
    const std::string begin = "<parameter=" + name + ">\n", end = "\n</parameter>\n";
    if (const auto values = values_of(schema)) return between(begin, bare_values(*values), end);
    std::set<const json::value*> seen;
    if (!may_be_string(schema, seen)) return between(begin, json_value(schema), end);
    const auto* object = schema.if_object();
    if (object != nullptr && object->contains("pattern") && object->contains("type") &&
        object->at("type") == "string")
      return between(begin, {{"type", "regex"}, {"pattern", object->at("pattern")}}, end);
    if (is_limited(schema)) {
      const std::string what =
          "this model writes texts bare, which only pattern, enum and const limit";
      if (tool_.is_strict) fail(name, what);
      const std::string warning = fmt::format("{}: {}: {}", tool_.param, path_of(name), what);
      if (std::ranges::find(warnings_, warning) == warnings_.end()) warnings_.push_back(warning);
    }
    return text_between(begin, end, {"</parameter>", "<parameter=", "</function>"});
  }

  [[nodiscard]] json::object dsml_parameter(const std::string& name,
                                            const json::value& schema) const {
    const std::string head = "<\uff5cDSML\uff5cparameter name=\"" + name + "\" string=\"";
    const std::string mark = "</\uff5cDSML\uff5cparameter>";
    const auto values = values_of(schema);
    const bool is_texts =
        values && std::ranges::all_of(*values, [](const auto& value) { return value.is_string(); });
    if (is_texts) return between(head + "true\">", bare_values(*values), mark + "\n");
    if (is_plain_string(schema))
      return text_between(head + "true\">", mark + "\n",
                          {mark, "<\uff5cDSML\uff5cparameter", "</\uff5cDSML\uff5cinvoke>"});
    return between(head + "false\">", json_value(schema), mark + "\n");
  }

  const GrammarTool& tool_;
  std::vector<std::string>& warnings_;
  const json::value root_;  // an object
};

}  // namespace

bool is_bare_name(std::string_view name) {
  return !name.empty() && std::ranges::all_of(name, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.';
  });
}

json::object arguments_format(ArgumentsForm form, const GrammarTool& tool,
                              std::vector<std::string>& warnings) {
  if (form == ArgumentsForm::kJson) return tags::schema(parse_json_text(tool.schema).value());
  if (form == ArgumentsForm::kGemma) return gemma_arguments_format(tool, warnings);
  return ParametersWriter(tool, warnings).write(form);
}

}  // namespace strata::server
