// SPDX-License-Identifier: Apache-2.0
// Layouts and packings of files: the same examples whatever holds them, and a named fault of each
// that is not whole.
#include <gmock/gmock.h>
#include <unistd.h>

#include "tests/data/data_fixture.h"

namespace strata::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

constexpr const char* kLines =
    "{\"prompt\": \"a, \\\"b\\\"\", \"completion\": \"c\\nd\"}\n{\"prompt\": \"1\", "
    "\"completion\": \"[2]\"}\n";

class Readers : public DataTest {
 protected:
  Dataset lines() { return read({{write("lines.jsonl", kLines)}}); }
  // Of a file with this content.
  std::string fault_of(const std::string& name, const std::string& content) {
    const std::string path = write(name, content);
    std::string message = fault({{path}});
    if (message.starts_with(path)) message.erase(0, path.size());
    return message;
  }
};

TEST_F(Readers, ArraysAndCsvAndPackedFilesHoldTheSame) {
  const std::string array =
      " \n[{\"prompt\": \"a, \\\"b\\\"\", \"completion\": \"c\\nd\"} ,\n\n{\"prompt\": \"1\",\n "
      "\"completion\": \"[2]\"}\n]\n";
  const std::string csv = "id,prompt,completion\r\n7,\"a, \"\"b\"\"\",\"c\nd\"\r\n8,1,[2]\r\n";
  const Dataset want = lines();
  ASSERT_EQ(want.examples.size(), 2u);
  expect_equal(read({{write("a.json", array)}}), want);
  expect_equal(read({{write("a.jsonl", "\xef\xbb\xbf" + std::string(kLines))}}), want);
  expect_equal(read({{write("a.csv", csv)}}), want);
  expect_equal(read({{write("b.csv", "\xef\xbb\xbf" + csv.substr(0, csv.size() - 2))}}), want);
  expect_equal(
      read({{write("s.csv", "\"prompt\";completion\n\"a, \"\"b\"\"\";\"c\nd\"\n1;[2]\n")}}), want);
  expect_equal(read({{write("c.tsv", "prompt\tcompletion\n\"a, \"\"b\"\"\"\t\"c\nd\"\n1\t[2]\n")}}),
               want);
  for (const auto& [name, content] : {std::pair<std::string, std::string>{"x.jsonl", kLines},
                                      {"x.json", array},
                                      {"x.csv", csv}}) {
    SCOPED_TRACE(name);
    expect_equal(read({{write(name + ".gz", gzip(content))}}), want);
    expect_equal(read({{write(name + ".zst", zstd(content))}}), want);
  }
  // Members and frames one behind the other, as `cat a.gz b.gz` makes them.
  const std::string line = kLines;
  const size_t half = line.find('\n') + 1;
  expect_equal(read({{write("two.gz", gzip(line.substr(0, half)) + gzip(line.substr(half)))}}),
               want);
  expect_equal(read({{write("two.zst", zstd(line.substr(0, half)) + zstd(line.substr(half)))}}),
               want);
}

TEST_F(Readers, PipesAreReadToTheirEnd) {
  for (const std::string& content : {std::string(kLines), gzip(kLines), zstd(kLines)}) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    ASSERT_EQ(::write(ends[1], content.data(), content.size()), std::ssize(content));
    ::close(ends[1]);
    const Dataset piped = read({{"/dev/fd/" + std::to_string(ends[0])}});
    ::close(ends[0]);
    expect_equal(piped, lines());
  }
}

TEST_F(Readers, StdinIsReadOnceAndMayBeCsv) {
  const int saved = ::dup(STDIN_FILENO);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const std::string csv = "prompt,completion\n\"a, \"\"b\"\"\",\"c\nd\"\n1,[2]\n";
  ASSERT_EQ(::write(ends[1], csv.data(), csv.size()), std::ssize(csv));
  ::close(ends[1]);
  ::dup2(ends[0], STDIN_FILENO);
  const Dataset from_stdin = read({{"-"}});
  ::dup2(saved, STDIN_FILENO);
  ::close(ends[0]);
  ::close(saved);
  expect_equal(from_stdin, lines());
  EXPECT_EQ(from_stdin.files[0].layout, Layout::kCsv);
}

TEST_F(Readers, TurnsInCsvAreJson) {
  const Dataset csv =
      read({{write("m.csv",
                   "messages,source\n\"[{\"\"role\"\": \"\"user\"\", \"\"content\"\": \"\"a\"\"}, "
                   "{\"\"role\"\": \"\"assistant\"\", \"\"content\"\": \"\"b\"\"}]\",x\n")}});
  expect_equal(csv, read({{write("m.jsonl",
                                 "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, "
                                 "{\"role\": \"assistant\", \"content\": \"b\"}]}\n")}}));
  // Alpaca's empty input is none.
  expect_equal(read({{write("a.csv", "instruction,input,output\na,,b\n")}}), csv);
}

TEST_F(Readers, FaultsOfLinesHaveTheirLine) {
  EXPECT_EQ(fault_of("t.csv", "text\n\"a\nb\"\na,b\n\n\"\"\n"),
            ":4: 2 fields, the header has 1\n" + root_ +
                "/t.csv:6: nothing to train on: no token of the text is a target");
  EXPECT_THAT(fault_of("a.json", "[{\"text\": \"a\"},\n {\"text\": 1},\n {]},\n 4\n]"),
              StartsWith(":2: text: got a number, want a string\n"));
  EXPECT_THAT(fault_of("a.json", "[{\"text\": \"a\"},\n {\"text\": }]"),
              StartsWith(":2: the record: JSON at byte "));
  // A bracket too many ends no other element.
  EXPECT_THAT(fault_of("a.json", "[{]},\n {\"text\": 1}]"),
              HasSubstr(":2: text: got a number, want a string"));
  EXPECT_EQ(fault_of("a.json", "[]"), ": no examples in it");
  EXPECT_EQ(fault_of("a.csv", ""), ": no examples in it");
  EXPECT_EQ(fault_of("a.csv", "text\n"), ": no examples in it");
}

TEST_F(Readers, FilesThatAreNotWholeAreCalledSo) {
  EXPECT_EQ(fault_of("a.json", "[{\"text\": \"a\"}"),
            ":1: the array is not closed; is the file cut off?");
  EXPECT_EQ(fault_of("a.json", "[{\"text\": \"a\"}"), fault_of("a.json", "[{\"text\": \"a\"}  "));
  EXPECT_THAT(fault_of("a.json", "[{\"text\": \"a"), HasSubstr("the array is not closed"));
  EXPECT_THAT(fault_of("a.json", "[{\"text\": \"a\"}] {}"), HasSubstr("more behind the end"));
  EXPECT_THAT(fault_of("a.json", "[] x"), HasSubstr("more behind the end"));
  EXPECT_THAT(fault_of("a.json", "[{\"text\": \"a\"},]"), HasSubstr("an element is missing"));
  EXPECT_THAT(fault_of("a.json", "[,{\"text\": \"a\"}]"), HasSubstr("an element is missing"));
  EXPECT_THAT(fault_of("a.csv", "text\n\"a"), StartsWith(":2: the quote of line 2 is not closed"));
  EXPECT_THAT(fault_of("a.csv", "text\n\"a\"b\nc\n"),
              StartsWith(":2: text behind a closing quote"));
  EXPECT_THAT(fault_of("a.csv", "text,text\na,b\n"), StartsWith(":1: the header has the column"));
  for (const std::string& whole : {gzip(kLines), zstd(kLines)}) {
    // Whatever byte is wrong, or wherever it ends: a named fault, or the same text as before.
    for (size_t i = 4; i < whole.size(); ++i) {
      std::string bad = whole;
      bad[i] = static_cast<char>(bad[i] ^ 0x10);
      const std::string cut_off = fault_of("x.gz", whole.substr(0, i));
      EXPECT_TRUE(cut_off.starts_with(": gzip: ") || cut_off.starts_with(": zstd: ")) << cut_off;
      EXPECT_NE(fault_of("y.gz", bad), "");
    }
  }
  EXPECT_EQ(fault_of("x.gz", gzip(kLines).substr(0, 30)),
            ": gzip: the file ends in the midst of its data; is it cut off?");
}

TEST_F(Readers, OtherFilesAreNamedWithWhatToDo) {
  EXPECT_EQ(fault_of("t.parquet", "PAR1..."),
            ": this is a Parquet file; make JSONL of it with Python's pyarrow:\n  python3 -c "
            "\"import json, sys, pyarrow.parquet as p; [print(json.dumps(r, default=str)) for b in "
            "p.ParquetFile(sys.argv[1]).iter_batches() for r in b.to_pylist()]\" '" +
                root_ + "/t.parquet' > '" + root_ + "/t.jsonl'");
  EXPECT_THAT(fault_of("u.jsonl", "\xff\xfe{"), StartsWith(": this is UTF-16; want UTF-8: iconv"));
  EXPECT_THAT(fault_of("pretty.json", "{\n \"text\": \"a\"\n}\n"), HasSubstr("jq -c ."));
  EXPECT_THAT(fault_of("README.md", "# A project\n"), HasSubstr("is this JSONL?"));
}

TEST_F(Readers, LongLinesAndPiecesOfAFileMeet) {
  // Lines that end where a piece of the file does, and one that spans several.
  std::string content;
  size_t count = 0;
  for (const size_t length : {262'120, 262'144, 262'143, 10, 700'000}) {
    content += "{\"text\": \"a\", \"id\": \"" + std::string(length, 'x') + "\"}\n";
    ++count;
  }
  EXPECT_EQ(read({{write("long.jsonl", content)}}).examples.size(), count);
  std::string array = "[" + content;
  for (size_t at = 0; (at = array.find("}\n{", at)) != std::string::npos;) array[at + 1] = ',';
  EXPECT_EQ(read({{write("long.json", array + "]")}}).examples.size(), count);
}

TEST_F(Readers, SourcesAreFilesFoldersAndWeights) {
  const std::string a = write("a.jsonl", kLines), b = write("b.jsonl", kLines);
  write("notes.md", "no data");
  write("c.csv.gz", gzip("text\na\n"));
  const std::string odd = write("a.jsonl:2", kLines);
  EXPECT_THAT(find_sources("data", {odd}), ElementsAre(Source{odd, 1}));
  std::filesystem::remove(odd);
  EXPECT_THAT(find_sources("data", {odd}), ElementsAre(Source{a, 2}));
  EXPECT_THAT(
      find_sources("data", {root_ + ":0.5", b + ":3"}),
      ElementsAre(Source{a, 0.5}, Source{b, 0.5}, Source{root_ + "/c.csv.gz", 0.5}, Source{b, 3}));
  EXPECT_THAT(find_sources("data", {"-:2"}), ElementsAre(Source{"-", 2}));
  const auto refused = [](const std::vector<std::string>& texts, Weights weights = Weights::kMay) {
    try {
      find_sources("data", texts, weights);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(refused({a + ":0"}), HasSubstr("got the weight '0', want a number above 0"));
  EXPECT_THAT(refused({a + ":x"}), HasSubstr("got the weight 'x'"));
  EXPECT_THAT(refused({a + ":nan"}), HasSubstr("got the weight 'nan'"));
  EXPECT_THAT(refused({a + ":2"}, Weights::kNone), HasSubstr("give " + a + " alone"));
  EXPECT_THAT(refused({"-", "-"}), HasSubstr("stdin (-) is named twice"));
  EXPECT_THAT(refused({root_ + "/none.jsonl"}), HasSubstr("no such file"));
  std::filesystem::create_directories(root_ + "/empty");
  EXPECT_THAT(refused({root_ + "/empty"}), HasSubstr("no files of data in this folder"));
  std::filesystem::permissions(root_ + "/empty", std::filesystem::perms::none);
  const uid_t user = ::geteuid();
  ASSERT_EQ(::seteuid(user == 0 ? 65534 : user), 0);  // root may read all
  const std::string unreadable = refused({root_ + "/empty"});
  ASSERT_EQ(::seteuid(user), 0);
  EXPECT_EQ(unreadable,
            "--data: " + root_ + "/empty: this folder cannot be read: Permission denied");
}

TEST_F(Readers, WeightsRepeatWholeAndDrawTheRest) {
  const std::vector<SourceRange> ranges = {{2, 0, 3}, {0.5, 3, 4}, {1, 7, 2}};
  const std::vector<int64_t> kept = {0, 2, 3, 4, 5, 6, 7, 8};
  const std::vector<int64_t> order = weighted_order(ranges, kept, 1);
  EXPECT_EQ(std::vector<int64_t>(order.begin(), order.begin() + 4),
            (std::vector<int64_t>{0, 2, 0, 2}));
  ASSERT_EQ(order.size(), 8u);
  EXPECT_TRUE(order[4] >= 3 && order[4] < order[5] && order[5] < 7);
  EXPECT_EQ(order[6], 7);
  EXPECT_EQ(order[7], 8);
  EXPECT_EQ(weighted_order(ranges, kept, 1), order);
  EXPECT_EQ(weighted_order({{1, 0, 7}, {1, 7, 2}}, kept, 5), kept);
}

TEST_F(Readers, ExamplesInAFileAreThoseInMemory) {
  std::string content;
  for (int i = 0; i < 500; ++i) content += "{\"text\": \"number " + std::to_string(i * i) + "\"}\n";
  const std::string path = write("many.jsonl", content);
  const Dataset memory = read({{path}});
  const Dataset file = read({{path}}, {.max_length = 500, .in_memory = 1000});
  EXPECT_LE(file.examples.store()->memory_bytes(), 1000 + 500 * 16);
  EXPECT_GT(memory.examples.store()->memory_bytes(), 2000 + 500 * 16);
  expect_equal(file, memory);
  EXPECT_EQ(file.num_tokens, memory.num_tokens);
}

TEST_F(Readers, LongExamplesAreDroppedCutOrSplit) {
  const auto length = [&](const char* text) {
    return static_cast<int64_t>(tokenizer_.encode(text).size());
  };
  const std::string text = "1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7 8 9";
  const int64_t all = length(text.c_str()) + 1;  // the end token
  const std::string path =
      write("long.jsonl", "{\"text\": \"1\"}\n\n{\"text\": \"" + text + "\"}\n{\"prompt\": \"" +
                              text + "\", \"completion\": \"1\"}\n");
  const Dataset whole = read({{path}});
  const ReadOptions drop = {.max_length = 8};
  const Dataset dropped = read({{path}}, drop);
  EXPECT_EQ(dropped.examples.size(), 1u);
  EXPECT_EQ(overlong_text(dropped.files[0], drop),
            path +
                ": 2 examples longer than --max-length 8 are dropped (lines 3 and 4); --overlong "
                "cut or split keeps them");
  const ReadOptions cut = {.max_length = 8, .overlong = Overlong::kCut};
  const Dataset cuts = read({{path}}, cut);
  ASSERT_EQ(cuts.examples.size(), 2u);
  EXPECT_EQ(cuts.examples[1].tokens.size(), 7u);
  const Example first = whole.examples[1];
  EXPECT_EQ(cuts.examples[1].targets,
            std::vector<int32_t>(first.targets.begin(), first.targets.begin() + 7));
  EXPECT_EQ(overlong_text(cuts.files[0], cut),
            path +
                ": 2 examples longer than --max-length 8 are cut (lines 3 and 4); 1 of them left "
                "out, with nothing to train on (line 4)");
  // Every trained target once, in order; the prompt's pieces are left out.
  const Dataset split = read({{path}}, {.max_length = 8, .overlong = Overlong::kSplit});
  std::vector<int32_t> targets;
  for (size_t i = 1; i + 1 < split.examples.size(); ++i) {
    const Example piece = split.examples[i];
    EXPECT_LE(piece.tokens.size() + 1, 8u);
    targets.insert(targets.end(), piece.targets.begin(), piece.targets.end());
  }
  ASSERT_GE(targets.size(), first.targets.size());  // behind them those of line 4
  targets.resize(first.targets.size());
  EXPECT_EQ(targets, first.targets);
  EXPECT_EQ(split.num_trained, whole.num_trained);
  EXPECT_EQ(static_cast<int64_t>(targets.size()) + 1, all);
}

TEST_F(Readers, TheListOfLinesIsBounded) {
  LineList lines;
  EXPECT_EQ(lines.text(), "");
  for (int64_t i = 1; i <= 100'000; ++i) lines.add(i);
  EXPECT_EQ(lines.text(), "1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 99990 more");
}

}  // namespace
}  // namespace strata::data
