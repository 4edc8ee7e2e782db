// SPDX-License-Identifier: Apache-2.0
// strata tokenize in process: the lines of its contract, and that a bad line writes nothing.
#include "apps/tokenize.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/files.h"
#include "tests/text/tiny_tokenizer.h"

namespace strata::apps {
namespace {

class Tokenize : public ::testing::Test {
 protected:
  Tokenize() : dir_(std::filesystem::temp_directory_path() / "strata_tokenize_test") {
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_);
    std::ofstream(dir_ / "tokenizer.json") << text::tiny_byte_level_json();
    std::ofstream(dir_ / "chat_template.jinja")
        << "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
           "{{ strftime_now('%d %b %Y') }}{% if add_generation_prompt %}>{% endif %}{{ x }}"
           "{{ tools|length if tools }}";
  }
  ~Tokenize() override { std::filesystem::remove_all(dir_); }

  std::string run(const std::string& input) {
    std::filesystem::remove(dir_ / "out.jsonl");
    std::ofstream(dir_ / "in.jsonl") << input;
    EXPECT_EQ(
        run_tokenize({dir_.string(), (dir_ / "in.jsonl").string(), (dir_ / "out.jsonl").string()}),
        0);
    return read_file((dir_ / "out.jsonl").string(), 1 << 20);
  }

  std::filesystem::path dir_;
};

TEST_F(Tokenize, AnswersLineByLine) {
  EXPECT_EQ(
      run("{\"text\":\"the in\"}\n{\"ids\":[257,220]}\n{\"bytes\":\"YWH/\"}\n"),
      "{\"ids\":[257,32,258]}\n{\"text\":\"the\xEF\xBF\xBD\"}\n{\"ids\":[260,239,191,189]}\n");
  EXPECT_EQ(run(""), "");
  EXPECT_EQ(run(R"({"ids":[97,270],"skip_special":true})"), "{\"text\":\"a\"}\n");
}

TEST_F(Tokenize, RendersConversations) {
  EXPECT_EQ(
      run(R"({"messages":[{"role":"user","content":"é\n"}],"add_generation_prompt":true,"vars":{"x":0.1},)"
          R"("tools":[{}],"now":"2026-01-31"})"),
      "{\"text\":\"user:\xC3\xA9\\n;31 Jan 2026>0.11\"}\n");
}

TEST_F(Tokenize, NamesABadLineAndWritesNothing) {
  for (const char* bad : {"", "{", "[]", "{}", R"({"text":1})", R"({"text":"a","ids":[]})",
                          R"({"text":"a","more":1})", R"({"ids":[272]})", R"({"ids":[-1]})",
                          R"({"ids":[1.0]})", R"({"ids":["a"]})", R"({"bytes":"a"})",
                          R"({"bytes":"a==="})", R"({"text":"\ud800"})", R"({"messages":[]})",
                          R"({"messages":[{}],"now":"x"})", R"({"text":"a","add_special":1})"}) {
    try {
      run("{\"text\":\"fine\"}\n" + std::string(bad) + "\n");
      ADD_FAILURE() << bad;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("line 2"), std::string::npos) << error.what();
    }
    EXPECT_FALSE(std::filesystem::exists(dir_ / "out.jsonl")) << bad;
  }
}

}  // namespace
}  // namespace strata::apps
