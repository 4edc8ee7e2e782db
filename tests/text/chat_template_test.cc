// SPDX-License-Identifier: Apache-2.0
// Bounds, faults and loading of chat templates.
#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <ctime>
#include <filesystem>
#include <fstream>

#include "base/error.h"

namespace strata::text {
namespace {

void expect_error(const ChatTemplate& chat, const ChatRequest& request) {
  EXPECT_THROW(static_cast<void>(chat.render(request)), Error) << request.messages;
}

constexpr char kMessages[] = R"([{"role":"user","content":"hi"}])";

std::string render(const std::string& source) {
  return ChatTemplate::parse(source).render({.messages = kMessages, .now = "2026-01-31"});
}

struct Fault {
  ErrorCode code;
  std::string message;
};

Fault fault_of(const std::string& source) {
  try {
    const std::string text = render(source);
    ADD_FAILURE() << source << " gave '" << text.substr(0, 100) << "'";
  } catch (const Error& error) {
    return {error.code, error.what()};
  }
  return {};
}

// Gives little text, or a fault with its line, for little of a core's time.
void expect_bounded(const std::string& source) {
  const std::string what = source.substr(0, 200);
  const std::clock_t begin = std::clock();
  try {
    EXPECT_LT(render(source).size(), 100u) << what;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("chat template: line 1: "), std::string::npos)
        << error.what();
  }
  EXPECT_LT((std::clock() - begin) / CLOCKS_PER_SEC, 20) << what;
}

TEST(ChatTemplate, HostileTemplatesStayWithinTheirBounds) {
  const std::string big =
      "{% set s = 'ab' %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}";
  const std::string sources[] = {
      "{% for a in range(99999) %}{% for b in range(99999) %}{{ a }}{% endfor %}{% endfor %}",
      "{% set ns = namespace(s='ab') %}" + big,
      "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% "
      "endfor %}{{ ns.s }}",
      "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% "
      "endfor %}",
      "{% set ns = namespace(s=[]) %}{% for i in range(9999) %}{% set ns.s = [ns.s] %}{% endfor %}",
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% macro m(n) %}{{ m(n) }}{{ m(n) }}{% endmacro %}{{ m(1) }}",
      "{{ 'a' * 999999999999 }}",
      "{{ [1] * 999999999999 }}",
      "{{ 'a'.ljust(999999999999) }}",
      "{{ '%9999999999d' % 1 }}",
      "{{ 'x'|indent(999999999999) }}",
      "{{ ('a' * 1000000)|replace('a', 'b' * 1000000) }}",
      "{{ ('b' * 1000000).join(['a'] * 1000000) }}",
      "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
      "{% set ns = namespace(f=0) %}{% for i in range(9999) %}{% set ns.f = [ns.f].index %}{% "
      "endfor %}{{ ns.f is callable }}",
      "{% set ns = namespace() %}{% for i in range(9999) %}{% set ns.l = loop %}{% for j in [ns.l] "
      "%}{% set ns.l = loop %}{% endfor %}{% endfor %}x",
      "{% set ns = namespace() %}{% set ns.me = ns %}{% set ns.list = [ns, ns] %}{{ ns.list|length "
      "}}",
      "{% for i in range(99999) %}{% macro m() %}{{ i }}{% endmacro %}{% set x = m %}{% endfor %}x",
  };
  for (const std::string& source : sources) expect_bounded(source);
}

// Whoever reads, copies or hashes something long pays for it, however it came there.
TEST(ChatTemplate, LongValuesAreChargedFor) {
  // Few steps are left where the work begins.
  const std::string set =
      "{% set y = 'a'.ljust(17000000) %}{% set b = 'x' * 16000000 %}{% set d = {'a': 1} %}"
      "{% set f = b.find %}";
  for (const char* work : {"'a'|trim(chars=b)", "'a'.split(sep=b)", "'a' is eq(other=b)", "f('y')",
                           "('A' ~ b) is lower", "d[b]", "{b: 1}"})
    expect_bounded(set + "{% for i in range(99999) %}{% set y = " + work + " %}{% endfor %}");
  std::string names = "a";
  for (int i = 0; i < 100000; ++i) names += ",a" + std::to_string(i);
  expect_bounded("{% macro m(" + names +
                 ") %}{% endmacro %}{% for i in range(9999) %}{{ m() }}{% endfor %}");
  const std::string pairs = "{% set d = dict(range(2000)|batch(2)) %}{% for i in range(4000) %}";
  for (const char* made : {"d.items()", "d|items", "d|dictsort"})
    EXPECT_EQ(fault_of(pairs + "{% set y = " + made + " %}{% endfor %}").code,
              ErrorCode::kResourceExhausted);
  EXPECT_EQ(fault_of("\n{{ " + std::string(256, 'a') + " }}").message,
            "chat template: line 2: a name of more than 255 bytes is not supported");
}

TEST(ChatTemplate, WorkIsInProportionToWhatIsRead) {
  expect_bounded("{{ ('x' * 8000000 ~ 'y') in 'x' * 16000000 }}");
  expect_bounded("{{ ('x' * 16000000).rfind('y' ~ 'x' * 8000000) }}");
  expect_bounded("{{ ('x' * 16000000).count('x' * 8000000 ~ 'y') }}");
  expect_bounded("{{ ('x' * 4000000).strip('y' * 4000000 ~ 'x')|length }}");
  expect_bounded("{{ ('a ' * 2000000 ~ ' ' * 8000000).split()|length }}");
  expect_bounded(
      "{% set d = dict(range(99999)|map('string')|batch(2)) %}"
      "{{ ('{x}' * 400000).format(x='', **d) }}");
  expect_bounded(
      "{% set a = dict(range(8000)|batch(2)) %}{% set b = dict(range(8000)|batch(2)) %}"
      "{% for i in range(9999) %}{% set y = a == b %}{% endfor %}");
  expect_bounded(
      "{% set ns = namespace(a=[1] * 1000000, b=[1] * 1000000 + [2]) %}{% for i in range(150) %}"
      "{% set ns.a = [ns.a] %}{% set ns.b = [ns.b] %}{% endfor %}"
      "{% for i in range(200) %}{% set y = ns.a < ns.b %}{% endfor %}");
}

TEST(ChatTemplate, CornersOfPythonsMeaning) {
  const std::pair<const char*, const char*> cases[] = {
      {"{% for x in [1] %}{{ loop == loop }}{{ loop is sameas(loop) }}{% endfor %}", "TrueTrue"},
      {"{% for x in [1, 2] %}{{ loop.changed(loop) }}{% endfor %}", "TrueFalse"},
      {"{{ 'abc'|truncate(2, end='', leeway=9223372036854775807) }}", "abc"},
      {"{{ 'a'.ljust(-9223372036854775807 - 1) }}", "a"},
      {"{{ 1 is lt('nan'|float) }}{{ 1 < 'nan'|float }}", "FalseFalse"},
      {"{{ {(1, 2): 'x'}[(1, 2)] }}{{ {1: 'a'}[true] }}{{ {1: 'b'}[1.0] }}{{ {none: 'c'}[none] }}",
       "xabc"},
      {"{{ {('nan'|float): 1, ('nan'|float): 2}|length }}{{ 0 in {'0': 1} }}", "2False"},
      {"{{ ' a  b '.rsplit(none, 1) }}{{ ' a  b '.split(none, 1) }}{{ ' '.split() }}",
       "[' a', 'b']['a', 'b '][]"},
      {"{{ 'a--b--c'.rsplit('--', 1) }}{{ 'a---b'.rsplit('--') }}", "['a--b', 'c']['a-', 'b']"},
      {"{{ 'xyx\u00e4x'.strip('\u00e4x') }}{{ 'abcab'.rfind('ab') }}{{ 'ab'.rfind('') }}", "y32"},
      {"{{ 3 is odd }}{{ -3 is odd }}{{ 4 is even }}{{ 6 is divisibleby(3) }}", "TrueTrueTrueTrue"},
      {"{{ [1, none] < [1, none, 2] }}{{ ([1, [2]], [3]) < ([1, [2]], [4]) }}", "TrueTrue"},
      {"{{ {'a': 1, 'b': 2}.keys() == {'b': 1, 'a': 2}.keys() }}", "True"},
      {"{{ {'a': 1, 'b': 2}.items() == {'b': 2, 'a': 1}.items() }}", "True"},
      {"{{ {'a': 1, 'b': 2}.items() == {'b': 1, 'a': 2}.items() }}", "False"},
      {"{{ {('a', 1): 2}.keys() == {'a': 1}.items() }}{{ {}.keys() == {}.items() }}", "TrueTrue"},
      {"{% set d = {'a': 1}.values() %}{{ d == d }}{{ d == {'a': 1}.values() }}", "TrueFalse"},
      {"{{ {'a': 'a'}.keys() == {'a': 'a'}.values() }}", "False"},
      {"{{ 9007199254740993 == 9007199254740992.0 }}{{ 9007199254740992 == 9007199254740992.0 }}",
       "FalseTrue"},
      {"{{ 9007199254740993 in {9007199254740992.0: 1} }}", "False"},
      {"{{ 9007199254740993 > 9007199254740992.0 }}{{ 9007199254740992.0 < 9007199254740993 }}",
       "TrueTrue"},
      {"{{ 9223372036854775807 < 9223372036854775808.0 }}{{ 1e300 > 9223372036854775807 }}",
       "TrueTrue"},
  };
  for (const auto& [source, wanted] : cases) EXPECT_EQ(render(source), wanted) << source;
  EXPECT_EQ(fault_of("{{ [1]|batch(9223372036854775807, 0)|list }}").code,
            ErrorCode::kResourceExhausted);
  EXPECT_EQ(fault_of("{{ [{'a': 1}]|map(attribute='\u00b2')|list }}").code,
            ErrorCode::kUnsupported);
  EXPECT_EQ(fault_of("{{ 0 ** -1 }}").code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(fault_of("{{ {(1, [2]): 1} }}").message,
            "chat template: line 1: unhashable type: 'list'");
  EXPECT_EQ(fault_of("{{ {({}.keys(),): 1} }}").message,
            "chat template: line 1: unhashable type: 'dict_keys'");
  EXPECT_EQ(fault_of("{{ 1 \u20ac }}").message,
            "chat template: line 1: unexpected character '\u20ac'");
}

TEST(ChatTemplate, DeepNestingIsRefusedNotCrashed) {
  for (const char* open : {"(", "[", "{'a':", "not ", "-", "x[", "f(", "1 if 1 else ", "{% if x %}",
                           "{% for x in y %}"}) {
    std::string source = open[1] == '%' ? "" : "{{ ";
    for (int i = 0; i < 20000; ++i) source += open;
    EXPECT_THROW(render(source), Error) << open;
  }
  std::string chain = "{{ x";
  for (int i = 0; i < 20000; ++i) chain += ".x";
  EXPECT_THROW(render(chain + " }}"), Error);
  expect_error(ChatTemplate::parse("x"), {.messages = std::string(100000, '[')});
}

TEST(ChatTemplate, NamesConstructAndLine) {
  EXPECT_EQ(fault_of("a\nb{% include 'x' %}").code, ErrorCode::kUnsupported);
  EXPECT_EQ(fault_of("a\nb{% include 'x' %}").message,
            "chat template: line 2: the statement 'include' is not supported");
  EXPECT_EQ(fault_of("\n\n{{ 1|urlize }}").message,
            "chat template: line 3: the filter 'urlize' is not supported");
  EXPECT_EQ(fault_of("{{ 1 is escaped }}").message,
            "chat template: line 1: the test 'escaped' is not supported");
  EXPECT_EQ(fault_of("{{ 'a'.encode() }}").message,
            "chat template: line 1: the method 'encode' of str is not supported");
  EXPECT_EQ(fault_of("\n{{ cycler(1) }}").message,
            "chat template: line 2: the global 'cycler' is not supported");
  EXPECT_EQ(fault_of("x\n{{ raise_exception('boom') }}").message, "chat template: line 2: boom");
  EXPECT_EQ(fault_of("{{ 9999999999999999999 }}").code, ErrorCode::kUnsupported);
}

TEST(ChatTemplate, RefusesWrongRequests) {
  const auto chat = ChatTemplate::parse("x");
  for (const char* messages :
       {"", "[]", "{}", "[1]", "[{\"a\":1}", "[{\"a\":\"\\ud800\"}]", "\xff"})
    expect_error(chat, {.messages = messages});
  expect_error(chat, {.messages = kMessages, .tools = "{}"});
  expect_error(chat, {.messages = kMessages, .tools = "[1]"});
  expect_error(chat, {.messages = kMessages, .vars = "[]"});
  expect_error(chat, {.messages = kMessages, .vars = R"({"messages":[]})"});
  expect_error(ChatTemplate::parse("{{ strftime_now('%Y') }}"),
               {.messages = kMessages, .now = "soon"});
}

TEST(ChatTemplate, LoadsFileOrFieldWithTheTokens) {
  const auto dir = std::filesystem::temp_directory_path() / "strata_chat_template_test";
  std::filesystem::create_directories(dir);
  EXPECT_FALSE(ChatTemplate::load(dir.string()).has_value());
  std::ofstream(dir / "tokenizer_config.json")
      << R"({"bos_token":"<b>","eos_token":{"content":"<e>"},"pad_token":null,)"
      << R"("chat_template":[{"name":"default","template":"{{ bos_token }}D{{ pad_token is defined }}"},)"
      << R"({"name":"tool_use","template":"T{{ eos_token }}"}]})";
  auto chat = ChatTemplate::load(dir.string());
  ASSERT_TRUE(chat.has_value());
  EXPECT_EQ(chat->render({.messages = kMessages}), "<b>DFalse");
  EXPECT_EQ(chat->render({.messages = kMessages, .tools = "[]"}), "T<e>");
  EXPECT_EQ(chat->render({.messages = kMessages, .vars = R"({"bos_token":"mine"})"}), "mineDFalse");
  // A file replaces the field with all its templates.
  std::ofstream(dir / "chat_template.jinja") << "J{{ eos_token }}{{ image_token }}\n";
  std::ofstream(dir / "special_tokens_map.json")
      << R"({"eos_token":"<map>","image_token":"<i>","additional_special_tokens":["x"]})";
  chat = ChatTemplate::load(dir.string());
  EXPECT_EQ(chat->render({.messages = kMessages, .tools = "[]"}), "J<map><i>");
  std::filesystem::create_directories(dir / "additional_chat_templates");
  std::ofstream(dir / "additional_chat_templates/tool_use.jinja") << "A{{ tools|length }}";
  std::ofstream(dir / "tokenizer_config.json")
      << R"({"eos_token":"<e>","added_tokens_decoder":{},"extra_special_tokens":{"image_token":"<x>"}})";
  chat = ChatTemplate::load(dir.string());
  EXPECT_EQ(chat->render({.messages = kMessages, .tools = "[]"}), "A0");
  EXPECT_EQ(chat->render({.messages = kMessages}), "J<e><x>");
  std::filesystem::remove_all(dir);
}

TEST(ChatTemplate, PreparesMessagesAsTransformersDoes) {
  const auto chat = ChatTemplate::parse("{{ messages[0] }}");
  EXPECT_EQ(chat.render({.messages = R"([{"role":"a","content":null,"thinking":"t"}])"}),
            "{'thinking': 't', 'role': 'a', 'reasoning_content': 't'}");
}

}  // namespace
}  // namespace strata::text
