// SPDX-License-Identifier: Apache-2.0
#include "structured/json_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"

namespace strata::structured {
namespace {

namespace json = boost::json;

constexpr unsigned kObject = 1, kArray = 2, kString = 4, kInteger = 8, kNumber = 16, kBoolean = 32,
                   kNull = 64;

struct TypeName {
  std::string_view name;
  unsigned bit;
};
constexpr TypeName kTypes[] = {{"object", kObject},   {"array", kArray},   {"string", kString},
                               {"integer", kInteger}, {"number", kNumber}, {"boolean", kBoolean},
                               {"null", kNull}};

// What a keyword's value is.
enum class Form : uint8_t {
  kSchema,
  kSchemaMap,   // an object of schemas, whose names are data
  kSchemaList,  // an array of them that is not empty
  kCount,       // a whole number from 0 on
  kNumber,
  kText,
  kTexts,  // an array of strings
};

// A keyword that says something of values of these types, and nothing of others.
struct TypedKeyword {
  std::string_view name;
  unsigned types;
  Form form;
};
constexpr TypedKeyword kTypedKeywords[] = {
    {"properties", kObject, Form::kSchemaMap},
    {"patternProperties", kObject, Form::kSchemaMap},
    {"additionalProperties", kObject, Form::kSchema},
    {"propertyNames", kObject, Form::kSchema},
    {"required", kObject, Form::kTexts},
    {"minProperties", kObject, Form::kCount},
    {"maxProperties", kObject, Form::kCount},
    {"items", kArray, Form::kSchema},
    {"prefixItems", kArray, Form::kSchemaList},
    {"minItems", kArray, Form::kCount},
    {"maxItems", kArray, Form::kCount},
    {"pattern", kString, Form::kText},
    {"format", kString, Form::kText},
    {"minLength", kString, Form::kCount},
    {"maxLength", kString, Form::kCount},
    {"minimum", kInteger | kNumber, Form::kNumber},
    {"maximum", kInteger | kNumber, Form::kNumber},
    {"exclusiveMinimum", kInteger | kNumber, Form::kNumber},
    {"exclusiveMaximum", kInteger | kNumber, Form::kNumber},
    {"multipleOf", kInteger, Form::kNumber},
};

// A schema with one of these is that, and nothing next to it is read.
constexpr std::string_view kWholeKeywords[] = {"$ref", "const", "enum", "anyOf", "oneOf", "allOf"};

constexpr std::string_view kAnnotations[] = {"title",    "default",   "description", "examples",
                                             "readOnly", "writeOnly", "deprecated",  "$comment",
                                             "$schema",  "$id"};

constexpr std::string_view kFormats[] = {"date",         "date-time",
                                         "duration",     "email",
                                         "hostname",     "ipv4",
                                         "ipv6",         "time",
                                         "json-pointer", "uri",
                                         "uri-template", "uri-reference",
                                         "uuid",         "relative-json-pointer"};

template <typename Names>
bool is_one_of(std::string_view name, const Names& names) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

unsigned types_of(const json::value& value) {
  switch (value.kind()) {
    case json::kind::object:
      return kObject;
    case json::kind::array:
      return kArray;
    case json::kind::string:
      return kString;
    case json::kind::bool_:
      return kBoolean;
    case json::kind::null:
      return kNull;
    case json::kind::int64:
    case json::kind::uint64:
      return kInteger | kNumber;
    case json::kind::double_:
      return std::floor(value.get_double()) == value.get_double() ? kInteger | kNumber : kNumber;
  }
  return 0;
}

// A keyword that no grammar is made of.
struct PassedOver {
  std::string path, fault;
};

class SchemaCheck {
 public:
  // With `passed_over`, keywords that no grammar is made of are added there; else they are faults.
  SchemaCheck(const std::string& where, std::vector<PassedOver>* passed_over)
      : where_(where), passed_over_(passed_over) {}

  // Returns the paths of all oneOf.
  std::vector<std::string> check_root(const json::value& root) {
    check_schema(root, "#");
    for (const auto& [path, target] : refs_) {
      if (!schemas_.contains(target))
        fail(path, fmt::format("'{}' is no schema of this text; want #, or the path of one, like "
                               "#/$defs/NAME",
                               target));
    }
    return std::move(one_ofs_);
  }

 private:
  [[noreturn]] void fail(const std::string& path, const std::string& what) const {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: {}: {}", where_, path, what));
  }

  // The keyword at this path is a fault, or is passed over.
  void refuse_keyword(const std::string& path, const std::string& what) const {
    if (passed_over_ == nullptr) fail(path, what);
    passed_over_->push_back({path, fmt::format("{}: {}: {}", where_, path, what)});
  }

  void add_to(size_t& total, size_t count, size_t most, const std::string& path,
              std::string_view what) const {
    total += count;
    if (total > most) fail(path, fmt::format("the schema has more than {} {}", most, what));
  }

  void check_schema(const json::value& schema, const std::string& path) {
    schemas_.insert(path);
    if (schema.is_bool()) return;
    if (!schema.is_object()) fail(path, "want a schema: an object, true or false");
    const json::object& object = schema.get_object();
    check_definitions(object, path);
    const auto whole = std::find_if(object.begin(), object.end(), [](const auto& member) {
      return is_one_of(member.key(), kWholeKeywords);
    });
    if (whole != object.end()) {
      check_whole(object, whole->key(), path);
    } else {
      check_typed(object, path);
    }
  }

  void check_definitions(const json::object& object, const std::string& path) {
    for (const std::string_view name : {"$defs", "definitions"}) {
      if (const json::value* map = object.if_contains(name))
        check_form(*map, Form::kSchemaMap, pointer_to(path, name));
    }
  }

  [[nodiscard]] static bool says_nothing(std::string_view keyword) {
    return is_one_of(keyword, kAnnotations) || keyword == "$defs" || keyword == "definitions";
  }

  // A schema of one of kWholeKeywords.
  void check_whole(const json::object& object, std::string_view name, const std::string& path) {
    const bool has_values = name == "const" || name == "enum";
    for (const auto& member : object) {
      const std::string_view key = member.key();
      if (key == name || says_nothing(key) || (has_values && key == "type")) continue;
      refuse_keyword(pointer_to(path, key),
                     fmt::format("'{}' with '{}' is not supported; write it into what '{}' names",
                                 key, name, name));
    }
    const json::value& value = object.at(name);
    const std::string inner = pointer_to(path, name);
    if (has_values) return check_values(object, name, inner);
    if (name != "$ref") return check_alternatives(value, name, inner);
    if (!value.is_string()) fail(inner, "want a string");
    refs_.emplace_back(inner, std::string(value.get_string()));
  }

  void check_values(const json::object& object, std::string_view name, const std::string& path) {
    const json::value& value = object.at(name);
    if (name == "enum" && (!value.is_array() || value.get_array().empty()))
      fail(path, "want an array of values");
    const json::array values = name == "enum" ? value.get_array() : json::array{value};
    add_to(num_enum_values_, values.size(), kMaxSchemaEnumValues, path, "values of enum");
    if (!object.contains("type")) return;
    const unsigned types = read_types(object.at("type"), path);
    for (const json::value& each : values) {
      if ((types_of(each) & types) == 0)
        fail(path, fmt::format("{} is not of the schema's type", json::serialize(each)));
    }
  }

  void check_alternatives(const json::value& list, std::string_view name, const std::string& path) {
    if (name == "allOf" && list.is_array() && list.get_array().size() > 1)
      refuse_keyword(path,
                     "allOf of several schemas is not supported; write one that says what all do");
    check_form(list, Form::kSchemaList, path);
    if (name == "oneOf") one_ofs_.push_back(path);
  }

  [[nodiscard]] unsigned read_types(const json::value& type, const std::string& path) const {
    const json::array names = type.is_array() ? type.get_array() : json::array{type};
    unsigned bits = 0;
    for (const json::value& name : names) {
      const auto row = std::find_if(std::begin(kTypes), std::end(kTypes), [&](const TypeName& of) {
        return name.is_string() && of.name == std::string_view(name.get_string());
      });
      if (row == std::end(kTypes))
        fail(pointer_to(path, "type"),
             fmt::format("got {}, want object, array, string, integer, number, boolean, null, or "
                         "an array of these",
                         json::serialize(name)));
      bits |= row->bit;
    }
    if (bits == 0) fail(pointer_to(path, "type"), "names no type");
    return bits;
  }

  // A schema of types and of what is said of each; without "type" its keywords may imply one.
  void check_typed(const json::object& object, const std::string& path) {
    unsigned types = 0;
    if (const json::value* type = object.if_contains("type")) {
      types = read_types(*type, path);
    } else if (object.contains("properties") || object.contains("additionalProperties")) {
      types = kObject;
    } else if (object.contains("items") || object.contains("prefixItems")) {
      types = kArray;
    }
    for (const auto& member : object) {
      if (member.key() == "type" || says_nothing(member.key())) continue;
      check_keyword(member.key(), member.value(), types, pointer_to(path, member.key()));
    }
    if ((types & kObject) != 0) check_object(object, path);
    if ((types & kString) != 0) check_string(object, path);
  }

  void check_keyword(std::string_view name, const json::value& value, unsigned types,
                     const std::string& path) {
    if (name == "uniqueItems" && value.is_bool() && !value.get_bool()) return;
    const auto* const row =
        std::find_if(std::begin(kTypedKeywords), std::end(kTypedKeywords),
                     [&](const TypedKeyword& keyword) { return keyword.name == name; });
    if (row == std::end(kTypedKeywords)) {
      return refuse_keyword(
          path,
          fmt::format("the keyword '{}' is not supported, so an answer could break it", name));
    }
    if (types == 0) return refuse_keyword(path, fmt::format("'{}' needs a \"type\"", name));
    if (name == "multipleOf" && (types & kNumber) != 0)
      refuse_keyword(path, "multipleOf is supported of integers alone");
    check_form(value, row->form, path);
  }

  void check_form(const json::value& value, Form form, const std::string& path) {
    switch (form) {
      case Form::kSchema:
        return check_schema(value, path);
      case Form::kSchemaMap:
        return check_schema_map(value, path);
      case Form::kSchemaList:
        return check_schema_list(value, path);
      case Form::kCount:
        if (!value.is_int64() || value.get_int64() < 0)
          fail(path, "want a whole number, 0 or more");
        return;
      case Form::kNumber:
        if (!value.is_number()) fail(path, "want a number");
        return;
      case Form::kText:
        if (!value.is_string()) fail(path, "want a string");
        return;
      case Form::kTexts:
        if (!value.is_array() || !std::all_of(value.get_array().begin(), value.get_array().end(),
                                              [](const auto& each) { return each.is_string(); }))
          fail(path, "want an array of strings");
        return;
    }
  }

  void check_schema_map(const json::value& value, const std::string& path) {
    if (!value.is_object()) fail(path, "want an object of schemas");
    add_to(num_properties_, value.get_object().size(), kMaxSchemaProperties, path,
           "named properties and definitions");
    for (const auto& member : value.get_object())
      check_schema(member.value(), pointer_to(path, member.key()));
  }

  void check_schema_list(const json::value& value, const std::string& path) {
    if (!value.is_array() || value.get_array().empty()) fail(path, "want an array of schemas");
    for (size_t i = 0; i < value.get_array().size(); ++i)
      check_schema(value.get_array()[i], pointer_to(path, std::to_string(i)));
  }

  // A key that is not named may be any, the same twice, or one that another keyword is about.
  void check_object(const json::object& object, const std::string& path) const {
    const json::value* properties = object.if_contains("properties");
    for (const std::string_view name : {"patternProperties", "propertyNames"}) {
      if (!object.contains(name)) continue;
      for (const std::string_view other : {"properties", "required", "propertyNames"}) {
        if (other != name && object.contains(other))
          refuse_keyword(pointer_to(path, name),
                         fmt::format("it is not supported together with '{}'", other));
      }
    }
    const json::value* patterns = object.if_contains("patternProperties");
    if (patterns != nullptr && patterns->get_object().size() != 1)
      refuse_keyword(pointer_to(path, "patternProperties"), "want one pattern");
    size_t num_required = 0;
    if (const json::value* required = object.if_contains("required")) {
      const json::array& names = required->get_array();
      // Without a name those before it keep their places.
      for (size_t i = names.size(); i-- > 0;) {
        if (properties != nullptr && properties->get_object().contains(names[i].get_string())) {
          ++num_required;
          continue;
        }
        refuse_keyword(pointer_to(pointer_to(path, "required"), std::to_string(i)),
                       fmt::format("{} is not among the properties", json::serialize(names[i])));
      }
    }
    const json::value* least = object.if_contains("minProperties");
    const json::value* others = object.if_contains("additionalProperties");
    const bool is_closed = properties != nullptr && others != nullptr && *others == false;
    if (least != nullptr && !is_closed &&
        std::cmp_greater(least->get_int64(), std::max<size_t>(1, num_required)))
      refuse_keyword(pointer_to(path, "minProperties"),
                     "above 1 and the number of required properties it is supported where "
                     "additionalProperties is false");
  }

  void check_string(const json::object& object, const std::string& path) const {
    const json::value* format = object.if_contains("format");
    if (format != nullptr && !is_one_of(std::string_view(format->get_string()), kFormats)) {
      return refuse_keyword(pointer_to(path, "format"),
                            fmt::format("{} is not known; there are {}", json::serialize(*format),
                                        fmt::join(kFormats, ", ")));
    }
    const char* form = format != nullptr ? "format" : "pattern";
    if (!object.contains(form)) return;
    for (const std::string_view other : {"pattern", "minLength", "maxLength"}) {
      if (other != form && object.contains(other))
        refuse_keyword(pointer_to(path, other),
                       fmt::format("it is not supported together with '{}'", form));
    }
  }

  const std::string& where_;
  std::vector<PassedOver>* passed_over_;  // or null
  size_t num_properties_ = 0, num_enum_values_ = 0;
  std::vector<std::string> one_ofs_;                       // paths
  std::set<std::string> schemas_;                          // paths
  std::vector<std::pair<std::string, std::string>> refs_;  // path of the keyword, what it names
};

json::value parse_schema(std::string_view text, const std::string& where) {
  if (text.size() > kMaxSchemaBytes)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: the schema has {} bytes, want {} at most", where, text.size(),
                            kMaxSchemaBytes));
  json::parse_options options;
  options.max_depth = kMaxSchemaDepth;
  boost::system::error_code fault;
  json::value root = json::parse(text, fault, {}, options);
  if (fault)
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: no JSON of at most {} levels: {}",
                                                         where, kMaxSchemaDepth, fault.message()));
  return root;
}

// A member of an object, or an item of an array.
void erase_at(json::value& root, const std::string& path) {
  const size_t slash = path.rfind('/');
  std::string key;
  for (size_t i = slash + 1; i < path.size(); ++i) {
    const bool is_escape = path[i] == '~';
    if (is_escape) ++i;
    key += is_escape ? (path[i] == '0' ? '~' : '/') : path[i];
  }
  boost::system::error_code fault;
  json::value* from = root.find_pointer(path.substr(1, slash - 1), fault);
  if (from == nullptr) return;  // its schema may have gone before
  if (auto* items = from->if_array()) {
    items->erase(items->begin() + std::stoi(key));
  } else {
    from->get_object().erase(key);
  }
}

}  // namespace

std::string pointer_to(const std::string& path, std::string_view step) {
  std::string out = path + "/";
  for (const char c : step) {
    if (c == '~') {
      out += "~0";
    } else if (c == '/') {
      out += "~1";
    } else {
      out += c;
    }
  }
  return out;
}

CheckedSchema check_json_schema(std::string_view text, const std::string& where, bool is_lenient) {
  json::value root = parse_schema(text, where);
  CheckedSchema out;
  // Without one keyword another may be at fault that was not read before.
  constexpr int kMostRounds = 16;
  for (int round = 0; is_lenient && round < kMostRounds; ++round) {
    std::vector<PassedOver> passed_over;
    SchemaCheck(where, &passed_over).check_root(root);
    if (passed_over.empty()) break;
    for (PassedOver& each : passed_over) {
      erase_at(root, each.path);
      out.warnings.push_back(std::move(each.fault));
    }
  }
  out.one_ofs = SchemaCheck(where, nullptr).check_root(root);
  out.text = json::serialize(root);
  return out;
}

}  // namespace strata::structured
