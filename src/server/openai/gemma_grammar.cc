// SPDX-License-Identifier: Apache-2.0
// gemma_arguments_format(): a tool's JSON schema as a format of values in Gemma 4's form.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <boost/json.hpp>
#include <span>
#include <utility>

#include "server/openai/gemma_call.h"
#include "server/openai/json_text.h"
#include "server/openai/openai_error.h"
#include "server/openai/schema_reference.h"
#include "structured/json_schema.h"

namespace strata::server {
namespace {

namespace json = boost::json;

const std::string kQuote(kGemmaQuote);

// Rules of values that no schema says anything of.
constexpr std::string_view kAnyRules = R"(
value ::= string | number | "true" | "false" | "null" | object | array
object ::= "{" (member ("," member)*)? "}"
member ::= [a-zA-Z_] [a-zA-Z0-9_]* ":" value
array ::= "[" (value ("," value)*)? "]"
string ::= "<|\"|>" ([^<] | "<" [^|<])* "<|\"|>"
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)?
)";

// Any text of the rule `kind`.
json::object any(const std::string& kind) {
  return {{"type", "grammar"}, {"grammar", "root ::= " + kind + std::string(kAnyRules)}};
}

json::object optional(json::object of) {
  return {{"type", "optional"}, {"content", std::move(of)}};
}

template <typename... Parts>
json::object join(Parts&&... parts) {
  json::array out;
  (out.push_back(std::forward<Parts>(parts)), ...);
  return tags::sequence(std::move(out));
}

// A value as the form writes it.
std::string text_of(const json::value& value) {
  std::string out;
  if (value.is_string()) return kQuote + json::value_to<std::string>(value) + kQuote;
  if (const auto* items = value.if_array()) {
    for (const json::value& item : *items) out += (out.empty() ? "" : ",") + text_of(item);
    return "[" + out + "]";
  }
  if (const auto* members = value.if_object()) {
    for (const auto& [key, item] : *members)
      out += (out.empty() ? "" : ",") + std::string(key) + ":" + text_of(item);
    return "{" + out + "}";
  }
  return json::serialize(value);
}

struct Member {
  json::object format;
  bool is_required;
};

json::object with_commas(std::span<const Member> members) {
  json::array out;
  for (const Member& member : members) {
    json::object one = join(tags::text(","), member.format);
    out.push_back(member.is_required ? std::move(one) : optional(std::move(one)));
  }
  return tags::sequence(std::move(out));
}

// What a format takes: its values of JSON, and one more for each 16 bytes of their texts.
int64_t cost_of(std::string_view text) { return 1 + std::ssize(text) / 16; }
int64_t cost_of(const json::value& format) {
  if (const auto* text = format.if_string()) return cost_of(std::string_view(*text));
  int64_t count = 1;
  if (const auto* items = format.if_array()) {
    for (const json::value& item : *items) count += cost_of(item);
  } else if (const auto* members = format.if_object()) {
    for (const auto& [key, item] : *members) count += cost_of(item);
  }
  return count;
}

// One of them at least, in their order, with commas between: the first is in one half or the other.
json::object one_or_more(std::span<const Member> members) {
  if (members.size() == 1) return members.front().format;
  const auto left = members.first(members.size() / 2), right = members.subspan(left.size());
  json::object begins_left = join(one_or_more(left), with_commas(right));
  const bool has_to = std::ranges::any_of(left, [](const Member& one) { return one.is_required; });
  if (has_to) return begins_left;
  return tags::either({std::move(begins_left), one_or_more(right)});
}

class GemmaWriter {
 public:
  GemmaWriter(const GrammarTool& tool, std::vector<std::string>& warnings)
      : tool_(tool), warnings_(warnings), root_(parse_json_text(tool.schema).value()) {}

  json::object write() { return format(root_, "#"); }

 private:
  // The most that is written. References may lead to one schema many times, and what objects and
  // arrays hold is written more than once: a small schema could become any size.
  static constexpr int64_t kMostCost = 400'000;

  // Whether so much more may be written; from the first time that it may not, never again.
  bool takes(int64_t cost) {
    left_ = left_ < cost ? 0 : left_ - cost;
    if (left_ > 0) return true;
    note_loss("#", "what is left of a schema so large is any value in this model's form of calls");
    return false;
  }
  // What a schema wants that the form does not keep.
  void note_loss(const std::string& path, const std::string& what) {
    std::string text = fmt::format("{}: {}: {}", tool_.param, path, what);
    if (tool_.is_strict)
      throw OpenAiFault(ErrorCode::kInvalidArgument, text, tool_.param, "invalid_schema");
    if (std::ranges::find(warnings_, text) == warnings_.end()) warnings_.push_back(std::move(text));
  }

  json::object format(const json::value& schema, const std::string& path) {
    const json::value& own = follow_references(schema, root_);
    const auto* object = own.if_object();
    if (object == nullptr || !takes(cost_of(kAnyRules))) return any("value");
    if (std::ranges::find(open_, object) != open_.end()) {
      note_loss(path, "a schema inside itself is any value in this model's form of calls");
      return any("value");
    }
    open_.push_back(object);
    json::object out = format_of(*object, path);
    open_.pop_back();
    return out;
  }

  json::object format_of(const json::object& schema, const std::string& path) {
    if (const json::value* value = schema.if_contains("const"))
      return format_of_values(json::array{*value});
    if (const json::value* values = schema.if_contains("enum"))
      return format_of_values(values->get_array());
    for (const char* name : {"anyOf", "oneOf", "allOf"}) {
      const json::value* list = schema.if_contains(name);
      if (list == nullptr) continue;
      const json::array& schemas = list->get_array();
      if (std::string_view(name) == "allOf" && schemas.size() > 1) {
        note_loss(path, "allOf of several schemas is any value in this model's form of calls");
        return any("value");
      }
      json::array formats;
      for (const json::value& one : schemas) formats.push_back(format(one, path));
      return tags::either(std::move(formats));
    }
    const json::value* type = schema.if_contains("type");
    if (type == nullptr && schema.contains("properties")) return object_format(schema, path);
    if (type == nullptr) return any("value");
    json::array formats;
    for (const json::value& one : type->is_array() ? type->get_array() : json::array{*type})
      formats.push_back(format_of_type(json::value_to<std::string>(one), schema, path));
    return tags::either(std::move(formats));
  }

  json::object format_of_values(const json::array& values) {
    json::array formats;
    for (const json::value& value : values) {
      std::string text = text_of(value);
      if (!takes(cost_of(text))) return any("value");
      formats.push_back(tags::text(std::move(text)));
    }
    return tags::either(std::move(formats));
  }

  json::object format_of_type(const std::string& type, const json::object& schema,
                              const std::string& path) {
    if (type == "string") return text_format(schema, path);
    if (type == "array") return array_format(schema, path);
    if (type == "object") return object_format(schema, path);
    json::object scalar = {{"type", type}};
    if (type == "integer" || type == "number") {
      for (const char* name :
           {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
        if (const json::value* limit = schema.if_contains(name)) scalar[name] = *limit;
    }
    return tags::schema(std::move(scalar));
  }

  json::object text_format(const json::object& schema, const std::string& path) {
    if (schema.contains("format"))
      note_loss(path, "this model's form of calls keeps no format of texts");
    std::string pattern;
    if (const json::value* of = schema.if_contains("pattern")) {
      pattern = json::value_to<std::string>(*of);
      const bool may_end_it = std::ranges::any_of(
          std::initializer_list<const char*>{".", "[^", "\\S", "\\W", "\\D", "<"},
          [&](const char* each) { return pattern.find(each) != std::string::npos; });
      if (may_end_it) {
        note_loss(path, "this model's form of calls keeps no pattern that also matches its quotes");
        pattern.clear();
      }
    } else if (schema.contains("minLength") || schema.contains("maxLength")) {
      const auto limit = [&](const char* name, const std::string& none) {
        const json::value* of = schema.if_contains(name);
        return of == nullptr ? none : json::serialize(*of);
      };
      pattern = fmt::format("[^<]{{{},{}}}", limit("minLength", "0"), limit("maxLength", ""));
    }
    if (!takes(cost_of(pattern))) return any("string");
    if (!pattern.empty()) {
      return join(tags::text(kQuote), json::object{{"type", "regex"}, {"pattern", pattern}},
                  tags::text(kQuote));
    }
    return {{"type", "tag"},
            {"begin", kQuote},
            {"content",
             json::object{{"type", "any_text"}, {"excludes", json::array{kQuote, "<tool_call|>"}}}},
            {"end", kQuote}};
  }

  json::object array_format(const json::object& schema, const std::string& path) {
    if (schema.contains("prefixItems")) {
      note_loss(path, "prefixItems is any array in this model's form of calls");
      return any("array");
    }
    const auto limit = [&](const char* name, int64_t none) {
      const json::value* of = schema.if_contains(name);
      return of == nullptr ? none : of->to_number<int64_t>();
    };
    const int64_t least = limit("minItems", 0), most = limit("maxItems", -1);
    if (most == 0) return tags::text("[]");
    const json::value* of = schema.if_contains("items");
    json::object item = of == nullptr ? any("value") : format(*of, path + "/items");
    if (!takes(2 * cost_of(item))) return any("array");
    json::object more = {{"type", "repeat"},
                         {"min", std::max<int64_t>(least - 1, 0)},
                         {"max", most < 0 ? -1 : most - 1},
                         {"content", join(tags::text(","), item)}};
    json::object items = join(std::move(item), std::move(more));
    if (least == 0) items = optional(std::move(items));
    return join(tags::text("["), std::move(items), tags::text("]"));
  }

  json::object object_format(const json::object& schema, const std::string& path) {
    for (const char* name :
         {"patternProperties", "propertyNames", "minProperties", "maxProperties"}) {
      if (schema.contains(name))
        note_loss(path, fmt::format("this model's form of calls keeps no {}", name));
    }
    const json::value* properties = schema.if_contains("properties");
    if (properties == nullptr || properties->get_object().empty())
      return object_of_any_keys(schema, path);
    std::vector<std::string> required;
    if (const json::value* of = schema.if_contains("required"))
      required = json::value_to<std::vector<std::string>>(*of);
    std::vector<Member> members;
    bool has_to = false;
    for (const auto& [key, of] : properties->get_object()) {
      const std::string name(key), below = structured::pointer_to(path + "/properties", name);
      if (name.empty() || name.find_first_of(":,{}[]<") != std::string::npos ||
          name.front() == ' ' || name.back() == ' ') {
        throw OpenAiFault(
            ErrorCode::kInvalidArgument,
            fmt::format("{}: {}: this model's form of calls has no properties with such a name",
                        tool_.param, below),
            tool_.param, "invalid_schema");
      }
      if (!takes(cost_of(name))) return any("object");
      const bool is_required = std::ranges::find(required, name) != required.end();
      has_to = has_to || is_required;
      members.push_back({join(tags::text(name + ":"), format(of, below)), is_required});
    }
    int64_t cost = 0;
    for (const Member& member : members) cost += cost_of(member.format);
    if (!takes(cost * static_cast<int64_t>(std::bit_width(members.size())))) return any("object");
    json::object all = one_or_more(members);
    return join(tags::text("{"), has_to ? std::move(all) : optional(std::move(all)),
                tags::text("}"));
  }

  json::object object_of_any_keys(const json::object& schema, const std::string& path) {
    const json::value* more = schema.if_contains("additionalProperties");
    if (more == nullptr || *more == true) return any("object");
    if (*more == false) return tags::text("{}");
    const json::object member =
        join(json::object{{"type", "regex"}, {"pattern", "[a-zA-Z_][a-zA-Z0-9_]*:"}},
             format(*more, path + "/additionalProperties"));
    if (!takes(2 * cost_of(member))) return any("object");
    json::object rest = {{"type", "star"}, {"content", join(tags::text(","), member)}};
    return join(tags::text("{"), optional(join(member, std::move(rest))), tags::text("}"));
  }

  const GrammarTool& tool_;
  std::vector<std::string>& warnings_;
  const json::value root_;
  int64_t left_ = kMostCost;
  std::vector<const json::object*> open_;  // schemas that the one at hand is inside of
};

}  // namespace

json::object gemma_arguments_format(const GrammarTool& tool, std::vector<std::string>& warnings) {
  return GemmaWriter(tool, warnings).write();
}

}  // namespace strata::server
