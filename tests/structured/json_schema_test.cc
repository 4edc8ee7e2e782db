// SPDX-License-Identifier: Apache-2.0
// What of JSON Schema is taken, and what is refused by its path: all that XGrammar 0.2.9 passes
// over, with a warning or without one.
#include "structured/json_schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace strata::structured {
namespace {

using testing::HasSubstr;

// "" where it is taken.
std::string fault_of(const std::string& schema) {
  try {
    check_json_schema(schema, "S");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

struct Refusal {
  const char *schema, *fault;
};

constexpr Refusal kRefusals[] = {
    {R"({"not": {"type": "null"}})", "S: #/not: the keyword 'not' is not supported"},
    {R"({"type": "string", "if": {}, "then": {}, "else": {}})", "#/if: the keyword 'if'"},
    {R"({"type": "string", "then": {}})", "#/then: the keyword 'then'"},
    {R"({"type": "string", "else": {}})", "#/else: the keyword 'else'"},
    {R"({"type": "object", "dependentRequired": {"a": ["b"]}})", "#/dependentRequired"},
    {R"({"type": "object", "dependentSchemas": {"a": {}}})", "#/dependentSchemas"},
    {R"({"type": "object", "dependencies": {"a": ["b"]}})", "#/dependencies"},
    {R"({"type": "array", "items": {}, "uniqueItems": true})", "#/uniqueItems"},
    {R"({"type": "array", "contains": {}})", "#/contains"},
    {R"({"type": "array", "minContains": 1})", "#/minContains"},
    {R"({"type": "array", "maxContains": 1})", "#/maxContains"},
    {R"({"type": "array", "unevaluatedItems": false})", "#/unevaluatedItems"},
    {R"({"type": "array", "additionalItems": false})", "#/additionalItems"},
    {R"({"type": "array", "items": [{}]})", "#/items: want a schema"},
    {R"({"type": "object", "unevaluatedProperties": false})", "#/unevaluatedProperties"},
    {R"({"type": "number", "multipleOf": 0.1})", "#/multipleOf: multipleOf is supported of"},
    {R"({"type": ["integer", "number"], "multipleOf": 2})", "#/multipleOf"},
    {R"({"allOf": [{"type": "string"}, {"minLength": 1}]})", "#/allOf: allOf of several"},
    {R"({"type": "object", "properties": {"a": {}}, "anyOf": [{"required": ["a"]}]})",
     "#/type: 'type' with 'anyOf' is not supported"},
    {R"({"anyOf": [{"type": "null"}], "oneOf": [{"type": "null"}]})", "#/oneOf: 'oneOf' with"},
    {R"({"$ref": "#/$defs/a", "minLength": 2, "$defs": {"a": {"type": "string"}}})",
     "#/minLength: 'minLength' with '$ref'"},
    {R"({"enum": ["a", "b"], "maxLength": 1})", "#/maxLength: 'maxLength' with 'enum'"},
    {R"({"enum": [1, "b"], "type": "string"})", "#/enum: 1 is not of the schema's type"},
    {R"({"const": 1.5, "type": "integer"})", "#/const: 1.5E0 is not of the schema's type"},
    {R"({"enum": []})", "#/enum: want an array of values"},
    {R"({"anyOf": []})", "#/anyOf: want an array of schemas"},
    {R"({"minLength": 1})", "#/minLength: 'minLength' needs a \"type\""},
    {R"({"required": ["a"]})", "#/required: 'required' needs a \"type\""},
    {R"({"type": "strin"})", "#/type: got \"strin\", want object"},
    {R"({"type": []})", "#/type: names no type"},
    {R"({"type": "string", "nullable": true})", "#/nullable: the keyword 'nullable'"},
    {R"({"type": "string", "format": "regex"})", "#/format: \"regex\" is not known"},
    {R"({"type": "string", "format": "date", "minLength": 3})", "together with 'format'"},
    {R"({"type": "string", "format": "date", "pattern": "2"})", "together with 'format'"},
    {R"({"type": "string", "pattern": "a+", "maxLength": 3})", "together with 'pattern'"},
    {R"({"type": "string", "pattern": 3})", "#/pattern: want a string"},
    {R"({"type": "string", "minLength": -1})", "#/minLength: want a whole number"},
    {R"({"type": "string", "minLength": "1"})", "#/minLength: want a whole number"},
    {R"({"type": "integer", "minimum": "1"})", "#/minimum: want a number"},
    {R"({"type": "object", "required": [1]})", "#/required: want an array of strings"},
    {R"({"type": "object", "required": "a"})", "#/required: want an array of strings"},
    {R"({"type": "object", "properties": {"a": {}}, "required": ["b"]})",
     "#/required/0: \"b\" is not among the properties"},
    {R"({"type": "object", "properties": {"a": {}}, "patternProperties": {"b": {}}})",
     "#/patternProperties: it is not supported together with 'properties'"},
    {R"({"type": "object", "patternProperties": {"a": {}, "b": {}}})", "want one pattern"},
    {R"({"type": "object", "properties": {"a": {}}, "propertyNames": {"pattern": "a"}})",
     "#/propertyNames/pattern: 'pattern' needs a \"type\""},
    {R"({"type": "object", "properties": {"a": {}}, "propertyNames": {"type": "string"}})",
     "#/propertyNames: it is not supported together with 'properties'"},
    {R"({"type": "object", "minProperties": 2})", "#/minProperties: above 1"},
    {R"({"properties": {"a/b~": {"items": {"not": {}}}}})", "#/properties/a~1b~0/items/not"},
    {R"({"anyOf": [{"type": "null"}, {"type": "object", "properties": {"a": 3}}]})",
     "#/anyOf/1/properties/a: want a schema"},
    {R"({"$ref": "https://example.org/schema"})", "#/$ref: 'https://example.org/schema' is no"},
    {R"({"$ref": "#/$defs/b", "$defs": {"a": {}}})", "#/$ref: '#/$defs/b' is no schema"},
    {R"({"$ref": "#/default", "default": {"not": {}}})", "#/$ref: '#/default' is no schema"},
    {R"({"$ref": 1})", "#/$ref: want a string"},
    {R"([1])", "#: want a schema"},
    {R"({"type": "string")", "S: no JSON of at most 64 levels: "},
    {"", "S: no JSON"},
};

TEST(JsonSchema, WhatTheLibraryPassesOverIsRefusedByItsPath) {
  for (const auto& [schema, fault] : kRefusals)
    EXPECT_THAT(fault_of(schema), HasSubstr(fault)) << schema;
}

constexpr const char* kTaken[] = {
    "true",
    "{}",
    R"({"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "x", "title": "T",
        "description": "D", "examples": [{"not": {}}], "default": {"not": 1}, "$comment": "c"})",
    R"({"type": "object", "properties": {"not": {"type": "string"}, "if": true},
        "required": ["not"], "additionalProperties": false, "minProperties": 2})",
    R"({"type": "array", "items": {"type": "integer", "multipleOf": 5}, "uniqueItems": false})",
    R"({"type": "string", "enum": ["a", "b"]})",
    R"({"type": ["string", "null"], "enum": ["a", null]})",
    R"({"type": "number", "const": 3})",
    R"({"allOf": [{"type": "string"}]})",
    R"({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "null"}}})",
    R"({"type": "object", "patternProperties": {"^x": {}}, "additionalProperties": false})",
    R"({"type": "object", "propertyNames": {"type": "string", "pattern": "^[a-z]+$"}})",
    // A keyword of another type says nothing of these values.
    R"({"type": "string", "minimum": 3})",
};

TEST(JsonSchema, WhatIsKeptIsTaken) {
  for (const char* schema : kTaken) EXPECT_EQ(fault_of(schema), "") << schema;
}

struct Leniency {
  const char *schema, *left;
  size_t warnings;
};

// Without what no grammar is made of, and a warning for each.
TEST(JsonSchema, LenientIsWithoutWhatIsPassedOver) {
  constexpr Leniency kRows[] = {
      {R"({"type":"string"})", R"({"type":"string"})", 0},
      {R"({"type":"string","not":{},"if":{}})", R"({"type":"string"})", 2},
      {R"({"properties":{"a/b":{"items":{"not":{}}}}})", R"({"properties":{"a/b":{"items":{}}}})",
       1},
      {R"({"type":"string","format":"card","pattern":"a"})", R"({"type":"string","pattern":"a"})",
       1},
      {R"({"enum":["a"],"minLength":1})", R"({"enum":["a"]})", 1},
  };
  for (const auto& [schema, left, warnings] : kRows) {
    const CheckedSchema checked = check_json_schema(schema, "S", /*is_lenient=*/true);
    EXPECT_EQ(checked.text, left);
    EXPECT_EQ(checked.warnings.size(), warnings) << schema;
  }
  EXPECT_THROW(check_json_schema(R"({"type":"strin"})", "S", true), Error);
  EXPECT_THROW(check_json_schema(R"({"$ref":"#/a"})", "S", true), Error);
}

TEST(JsonSchema, StrictRulesAreOpenAis) {
  const auto fault = [](const char* schema) -> std::string {
    try {
      check_strict_schema(schema, "S");
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(fault(R"({"type":"array","items":{}})"), HasSubstr("S: #: strict: the root wants"));
  EXPECT_THAT(fault(R"({"anyOf":[{"type":"object"}]})"), HasSubstr("S: #: strict: the root wants"));
  EXPECT_THAT(fault(R"({"type":"object","properties":{}})"), HasSubstr("S: #: strict: an object"));
  EXPECT_THAT(fault(R"({"type":"object","properties":{"a":{}},"additionalProperties":false})"),
              HasSubstr("S: #/required: strict: wants every property, 'a' is not in it"));
  EXPECT_THAT(fault(R"({"type":"object","properties":{"a":{"anyOf":[{"type":"null"},
                      {"type":"array","items":{"type":"object"}}]}},"required":["a"],
                      "additionalProperties":false})"),
              HasSubstr("S: #/properties/a/anyOf/1/items: strict: an object wants"));
  EXPECT_EQ(fault(R"({"type":"object","properties":{"a":{"$ref":"#/$defs/b"}},"required":["a"],
                     "additionalProperties":false,"$defs":{"b":{"type":"object",
                     "additionalProperties":false}}})"),
            "");
}

std::string repeated(std::string_view text, size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += text;
  return out;
}

TEST(JsonSchema, LimitsAreThoseThatItNames) {
  const auto padded = [](size_t bytes) {
    const std::string text = R"({"title": ""})";
    return R"({"title": ")" + std::string(bytes - text.size(), 'x') + R"("})";
  };
  EXPECT_EQ(fault_of(padded(kMaxSchemaBytes)), "");
  EXPECT_THAT(fault_of(padded(kMaxSchemaBytes + 1)), HasSubstr("has 65537 bytes, want 65536"));
  const auto nested = [](size_t levels) {
    return repeated(R"({"items": )", levels - 1) + "{}" + repeated("}", levels - 1);
  };
  EXPECT_EQ(fault_of(nested(kMaxSchemaDepth)), "");
  EXPECT_THAT(fault_of(nested(kMaxSchemaDepth + 1)), HasSubstr("no JSON of at most 64 levels"));
  const auto properties = [](size_t count) {
    std::string out = R"({"properties": {"a": true)";
    for (size_t i = 1; i < count; ++i) out += ",\"" + std::to_string(i) + "\": {}";
    return out + "}}";
  };
  EXPECT_EQ(fault_of(properties(kMaxSchemaProperties)), "");
  EXPECT_THAT(fault_of(properties(kMaxSchemaProperties + 1)), HasSubstr("more than 2000 named"));
  const auto values = [](size_t count) {
    return R"({"enum": [0)" + repeated(",1", count - 1) + "]}";
  };
  EXPECT_EQ(fault_of(values(kMaxSchemaEnumValues)), "");
  EXPECT_THAT(fault_of(values(kMaxSchemaEnumValues + 1)), HasSubstr("more than 5000 values"));
}

// Of a member that is there twice the last one counts, for the check as for the grammar.
TEST(JsonSchema, GivesTextThatSaysEachMemberOnce) {
  EXPECT_EQ(check_json_schema(R"({"type": "null", "type": "string"})", "S").text,
            R"({"type":"string"})");
}

// Names that are no properties' are passed over alone.
TEST(JsonSchema, OtherRequiredNamesStay) {
  const CheckedSchema checked = check_json_schema(
      R"({"type":"object","properties":{"a":{},"b":{}},"required":["x","a","y","b"]})", "S", true);
  EXPECT_THAT(checked.text, HasSubstr(R"("required":["a","b"])"));
  EXPECT_EQ(checked.warnings.size(), 2u);
}

}  // namespace
}  // namespace strata::structured
