// SPDX-License-Identifier: Apache-2.0
// check_strict_schema() of structured/json_schema.h.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <string>

#include "base/error.h"
#include "structured/json_schema.h"

namespace strata::structured {
namespace {

namespace json = boost::json;

constexpr const char* kUnionKeywords[] = {"anyOf", "oneOf"};

// What OpenAI asks of a schema with "strict": true, besides what every schema has to keep.
class StrictRules {
 public:
  explicit StrictRules(const std::string& where) : where_(where) {}

  void check_root(const json::value& root) const {
    const auto* object = root.if_object();
    const json::value* type = object == nullptr ? nullptr : object->if_contains("type");
    if (type == nullptr || *type != "object")
      fail("#", "strict: the root wants \"type\": \"object\"");
    check_schema(root, "#");
  }

 private:
  [[noreturn]] void fail(const std::string& path, const std::string& what) const {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: {}: {}", where_, path, what));
  }

  void check_map(const json::object& of, const char* name, const std::string& path) const {
    const json::value* map = of.if_contains(name);
    if (map == nullptr || !map->is_object()) return;
    for (const auto& [key, schema] : map->get_object())
      check_schema(schema, pointer_to(pointer_to(path, name), key));
  }

  void check_schema(const json::value& schema, const std::string& path) const {
    const auto* object = schema.if_object();
    if (object == nullptr) return;
    for (const char* name : {"properties", "$defs", "definitions"}) check_map(*object, name, path);
    if (const json::value* items = object->if_contains("items"))
      check_schema(*items, pointer_to(path, "items"));
    for (const char* name : kUnionKeywords) {
      const json::value* list = object->if_contains(name);
      if (list == nullptr || !list->is_array()) continue;
      for (size_t i = 0; i < list->get_array().size(); ++i)
        check_schema(list->get_array()[i], pointer_to(pointer_to(path, name), std::to_string(i)));
    }
    const json::value* type = object->if_contains("type");
    if (object->contains("properties") || (type != nullptr && *type == "object"))
      check_object(*object, path);
  }

  void check_object(const json::object& object, const std::string& path) const {
    const json::value* others = object.if_contains("additionalProperties");
    if (others == nullptr || *others != false)
      fail(path, "strict: an object wants \"additionalProperties\": false");
    const json::value* properties = object.if_contains("properties");
    if (properties == nullptr || !properties->is_object()) return;
    const json::value* required = object.if_contains("required");
    for (const auto& [key, schema] : properties->get_object()) {
      const bool is_named =
          required != nullptr && required->is_array() &&
          std::ranges::find(required->get_array(), json::value(key)) != required->get_array().end();
      if (!is_named)
        fail(pointer_to(path, "required"),
             fmt::format("strict: wants every property, '{}' is not in it; let one that may be "
                         "missing be null",
                         std::string_view(key)));
    }
  }

  const std::string& where_;
};

}  // namespace

void check_strict_schema(std::string_view text, const std::string& where) {
  json::parse_options options;
  options.max_depth = kMaxSchemaDepth;
  boost::system::error_code fault;
  const json::value root = json::parse(text, fault, {}, options);
  if (!fault) StrictRules(where).check_root(root);  // else check_json_schema() says what it is
}

}  // namespace strata::structured
