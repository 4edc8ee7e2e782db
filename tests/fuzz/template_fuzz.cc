// SPDX-License-Identifier: Apache-2.0
// A chat template from anybody: it is refused or rendered, within its bounds.
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/error.h"
#include "text/chat_template.h"
#include "text/unicode/unicode.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace strata;
  try {
    const auto chat = text::ChatTemplate::parse({reinterpret_cast<const char*>(data), size},
                                                R"({"bos_token":"<s>","eos_token":"</s>"})");
    const std::string text = chat.render(
        {.messages =
             R"([{"role":"system","content":"Be brief."},{"role":"user","content":"Hé \n the"},)"
             R"({"role":"assistant","content":null,"thinking":"hm","tool_calls":[{"id":"1","function":)"
             R"({"name":"f","arguments":{"a":[1,2.5,true,null,{"b":"c"}]}}}]}])",
         .tools = R"([{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}])",
         .vars = R"({"x":[3,1,2],"enable_thinking":true})",
         .add_generation_prompt = true,
         .now = "2026-01-31"});
    CHECK(text::is_valid_utf8(text));
  } catch (const Error&) {
  }
  return 0;
}
