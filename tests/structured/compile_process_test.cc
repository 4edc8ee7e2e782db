// SPDX-License-Identifier: Apache-2.0
// Grammars compiled in a child: they are those that are compiled here, a child that takes too long
// or too much goes and makes way for another, and it has nothing of its parent's.
#include "structured/compile_process.h"

#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "structured/grammar_store.h"
#include "tests/structured/tiny_tokens.h"

namespace strata::structured {
namespace {

using testing::HasSubstr;
using Why = CompileStopped::Why;

class CompileChild : public testing::Test {
 protected:
  void SetUp() override {
    if (!STRATA_WANTS_GRAMMARS) GTEST_SKIP();
  }
};

CompileLimits limits_of(double seconds, int64_t memory = int64_t{1} << 30) {
  return {.seconds = seconds, .memory = memory, .program = STRATA_BINARY};
}

constexpr const char* kSchema = R"({"type": "object", "properties": {"a": {"type": "integer"},
    "b": {"type": "array", "items": {"enum": ["x", true, "yz"]}, "maxItems": 4}},
    "required": ["a", "b"], "additionalProperties": false})";

// Arrays in arrays, each of other numbers: within all limits of a schema, and a second or more to
// compile.
GrammarSource endless() {
  std::string properties;
  for (int i = 0; i < 50; ++i) {
    std::string array = R"({"type":"integer","minimum":-)" + std::to_string(100000000000000 + i) +
                        R"(,"maximum":)" + std::to_string(1000000000000000 + 7 * i) + "}";
    for (int level = 0; level < 18; ++level)
      array = R"({"type":"array","items":)" + array + R"(,"minItems":1,"maxItems":500})";
    properties += (i == 0 ? "\"p" : ",\"p") + std::to_string(i) + "\":" + array;
  }
  return {.text = R"({"type":"object","properties":{)" + properties + "}}"};
}

// The masks along one walk are the same.
void expect_equal_walks(const Grammar& got, const Grammar& want, int32_t end) {
  Matcher a = got.start({end}), b = want.start({end});
  for (int step = 0; step < 40 && !b.is_ended(); ++step) {
    const std::vector<int32_t> allowed = allowed_tokens(b);
    ASSERT_EQ(allowed_tokens(a), allowed) << step;
    const int32_t token = allowed[static_cast<size_t>(step * 7) % allowed.size()];
    ASSERT_TRUE(a.accept(token) && b.accept(token));
  }
}

TEST_F(CompileChild, CompilesWhatIsCompiledHere) {
  CompileProcess process(limits_of(30));
  for (const char* schema : {kSchema, R"({})", R"({"type": "string", "maxLength": 5})"}) {
    const GrammarSource source = {.text = schema};
    const Grammar got = process.compile(tiny().vocabulary, source, "S");
    expect_equal_walks(got, compile_grammar(tiny().vocabulary, source, "S"), tiny().end_token);
  }
  // Free text between marks, of which the library writes down less than it needs.
  const GrammarSource tags = {.kind = GrammarKind::kTags, .text = R"({"type": "structural_tag",
      "format": {"type": "tag", "begin": "a", "content": {"type": "any_text", "excludes": ["bd"]},
      "end": "cd"}})"};
  expect_equal_walks(process.compile(tiny().vocabulary, tags, "S"),
                     compile_grammar(tiny().vocabulary, tags, "S"), tiny().end_token);
  const int child = process.child();
  EXPECT_GT(child, 0);
  static_cast<void>(process.compile(tiny().vocabulary, {.text = "true"}, "S"));
  EXPECT_EQ(process.child(), child);  // it is kept
}

TEST_F(CompileChild, RefusesInTheSameWords) {
  CompileProcess process(limits_of(30));
  try {
    static_cast<void>(process.compile(tiny().vocabulary, {.text = R"({"not": {}})"}, "S"));
    FAIL();
  } catch (const CompileStopped&) {
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "S: #/not: the keyword 'not' is not supported, so an answer could break it");
  }
  const Grammar lenient =
      process.compile(tiny().vocabulary, {.text = R"({"not": {}})", .is_lenient = true}, "S");
  EXPECT_THAT(lenient.warnings(), testing::ElementsAre(HasSubstr("#/not: the keyword 'not'")));
}

Why stopped_by(CompileProcess& process, const GrammarSource& source, const char* words) {
  try {
    static_cast<void>(process.compile(tiny().vocabulary, source, "S"));
  } catch (const CompileStopped& stopped) {
    EXPECT_THAT(stopped.what(), HasSubstr(words));
    return stopped.why;
  }
  ADD_FAILURE() << "it was compiled";
  return Why::kCrash;
}

TEST_F(CompileChild, OneThatTakesTooLongIsKilledAndReplaced) {
  CompileProcess process(limits_of(0.2));
  static_cast<void>(process.compile(tiny().vocabulary, {.text = "true"}, "S"));
  const int first = process.child();
  const double begin = now_seconds();
  EXPECT_EQ(stopped_by(process, endless(), "longer than 0.2 s (--schema-seconds)"), Why::kSeconds);
  EXPECT_LT(now_seconds() - begin, 3);
  EXPECT_EQ(::kill(first, 0), -1) << "the child still runs";
  static_cast<void>(process.compile(tiny().vocabulary, {.text = kSchema}, "S"));
  EXPECT_NE(process.child(), first);
}

TEST_F(CompileChild, OneThatTakesTooMuchIsReplaced) {
  CompileProcess process(limits_of(60, /*memory=*/int64_t{32} << 20));
  EXPECT_EQ(stopped_by(process, endless(), "more than 32 MiB of memory"), Why::kMemory);
  static_cast<void>(process.compile(tiny().vocabulary, {.text = kSchema}, "S"));
}

// What would be long to send is compiled here, behind the child.
TEST_F(CompileChild, WhatIsLargeIsCompiledHere) {
  CompileProcess process(limits_of(60));
  std::string properties;
  for (int i = 0; i < 1500; ++i)
    properties += (i == 0 ? "\"p" : ",\"p") + std::to_string(i) + R"(":{"type":"null"})";
  const GrammarSource source = {.text = R"({"type":"object","properties":{)" + properties + "}}"};
  const double begin = now_seconds();
  expect_equal_walks(process.compile(tiny().vocabulary, source, "S"),
                     compile_grammar(tiny().vocabulary, source, "S"), tiny().end_token);
  EXPECT_LT(now_seconds() - begin, 10);
}

TEST_F(CompileChild, OneThatIsKilledByOthersIsReplaced) {
  CompileProcess process(limits_of(30));
  static_cast<void>(process.compile(tiny().vocabulary, {.text = "true"}, "S"));
  ::kill(process.child(), SIGKILL);
  EXPECT_EQ(stopped_by(process, {.text = kSchema}, "ended its process"), Why::kCrash);
  static_cast<void>(process.compile(tiny().vocabulary, {.text = kSchema}, "S"));
}

// A bystander's compile that waits behind one that is killed is compiled by the next child.
TEST_F(CompileChild, WhoWaitsBehindOneThatIsKilledIsServed) {
  CompileProcess process(limits_of(0.2));
  static_cast<void>(process.compile(tiny().vocabulary, {.text = "true"}, "S"));
  auto hostile =
      std::async(std::launch::async, [&] { return stopped_by(process, endless(), "longer than"); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const GrammarSource source = {.text = kSchema};
  const Grammar got = process.compile(tiny().vocabulary, source, "S");
  EXPECT_EQ(hostile.get(), Why::kSeconds);
  expect_equal_walks(got, compile_grammar(tiny().vocabulary, source, "S"), tiny().end_token);
}

// It has its end of the socket, /dev/null and the log, and no variable.
TEST_F(CompileChild, HasNothingOfItsParents) {
  ::setenv("STRATA_TEST_SECRET", "tml-secret", 1);
  const int file = ::dup(0);  // one that is not closed by exec
  CompileProcess process(limits_of(30));
  static_cast<void>(process.compile(tiny().vocabulary, {.text = "true"}, "S"));
  const std::string proc = "/proc/" + std::to_string(process.child());
  std::vector<std::string> files;
  for (const auto& each : std::filesystem::directory_iterator(proc + "/fd"))
    files.push_back(each.path().filename());
  std::ranges::sort(files);
  EXPECT_EQ(files, (std::vector<std::string>{"0", "1", "2"}));
  std::ifstream variables(proc + "/environ");
  EXPECT_EQ(variables.get(), std::ifstream::traits_type::eof());
  ::close(file);
}

TEST_F(CompileChild, AProgramThatIsNotThereIsSaid) {
  CompileProcess process({.seconds = 1, .program = "/no/such/program"});
  try {
    static_cast<void>(process.compile(tiny().vocabulary, {.text = "true"}, "S"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code, ErrorCode::kIo);
    EXPECT_THAT(error.what(), HasSubstr("/no/such/program: no process for compiling"));
  }
}

GrammarStore::Options store_options(int64_t bytes, double keep_seconds = 600) {
  return {.limits = limits_of(30), .space = SharedLimit(bytes), .keep_seconds = keep_seconds};
}

GrammarSource choice(int number) {
  return {.text = R"({"const": )" + std::to_string(number) + "}"};
}

TEST_F(CompileChild, StoresForEachTenantAlone) {
  const GrammarStore::Options options = store_options(int64_t{64} << 20);
  GrammarStore store(options);
  const Vocabulary& vocabulary = tiny().vocabulary;
  EXPECT_EQ(store.find("alice", vocabulary, choice(1)), nullptr);
  const GrammarStore::Held held = store.compile("alice", vocabulary, choice(1), "S");
  ASSERT_NE(held, nullptr);
  EXPECT_EQ(store.find("alice", vocabulary, choice(1)).get(), held.get());
  EXPECT_EQ(store.find("bob", vocabulary, choice(1)), nullptr);
  EXPECT_GT(options.space.used("alice"), 0);
  EXPECT_EQ(options.space.used("bob"), 0);
  EXPECT_THROW(static_cast<void>(store.compile("bob", vocabulary, {.text = "{"}, "S")), Error);
  const GrammarStore::Counts counts = store.counts();
  EXPECT_EQ(counts.compiles, 1);
  EXPECT_EQ(counts.hits, 1);
  EXPECT_GT(counts.seconds, 0);
  EXPECT_EQ(counts.faults[static_cast<size_t>(GrammarFault::kSource)], 1);
}

TEST_F(CompileChild, WhatIsNotAskedForGoes) {
  const GrammarStore::Options options = store_options(int64_t{64} << 20, /*keep_seconds=*/0);
  GrammarStore store(options);
  store.compile("alice", tiny().vocabulary, choice(1), "S");
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_EQ(store.find("alice", tiny().vocabulary, choice(1)), nullptr);
  EXPECT_EQ(options.space.used(), 0);
}

// A tenant's oldest make way for its newest; what is in use does not, and nobody else's.
TEST_F(CompileChild, ATenantsOldestMakeWayForItsNewest) {
  const GrammarStore::Options options = store_options(int64_t{200} << 10);
  SharedLimit(options.space).set_num_tenants(2);
  GrammarStore store(options);
  const Vocabulary& vocabulary = tiny().vocabulary;
  ASSERT_NE(store.compile("bob", vocabulary, choice(0), "S"), nullptr);
  std::vector<GrammarStore::Held> in_use;
  int most = 0;
  while (GrammarStore::Held held = store.compile("alice", vocabulary, choice(most), "S")) {
    in_use.push_back(held);
    ASSERT_LT(++most, 100);
  }
  EXPECT_GT(most, 1);
  EXPECT_EQ(store.counts().faults[static_cast<size_t>(GrammarFault::kSpace)], 1);
  in_use.clear();
  for (int i = 0; i < 2 * most; ++i)
    EXPECT_NE(store.compile("alice", vocabulary, choice(100 + i), "S"), nullptr) << i;
  EXPECT_EQ(store.find("alice", vocabulary, choice(100)), nullptr);
  EXPECT_NE(store.find("alice", vocabulary, choice(100 + 2 * most - 1)), nullptr);
  EXPECT_NE(store.find("bob", vocabulary, choice(0)), nullptr);
}

}  // namespace
}  // namespace strata::structured
