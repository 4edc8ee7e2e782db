// SPDX-License-Identifier: Apache-2.0
// strata chat and generate, the program itself, as people use them: at a terminal and in a pipe.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "apps/init.h"
#include "tests/apps/program.h"

namespace strata::apps {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::string kBundled = std::string(STRATA_SOURCE_DIR) + "/models/tiny-qwen3";
constexpr const char* kUp = "\033[A";
constexpr const char* kCtrlC = "\003";
constexpr const char* kCtrlD = "\004";

void set_columns(const Terminal& terminal, uint16_t columns) {
  const std::string path = "/proc/" + std::to_string(terminal.pid()) + "/fd/0";
  const int fd = ::open(path.c_str(), O_RDWR | O_NOCTTY);
  const winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
  EXPECT_EQ(::ioctl(fd, TIOCSWINSZ, &size), 0);
  ::close(fd);
}

class ChatTest : public ::testing::Test {
 protected:
  // A model of random weights, which goes on for as long as it may.
  std::string endless_model(int context) {
    const std::string config = dir_.file("config"), out = dir_.file("endless");
    std::filesystem::create_directories(config);
    for (const char* name : {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"})
      std::filesystem::copy_file(kBundled + "/" + name, config + "/" + name);
    std::ofstream(config + "/config.json")
        << R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
      "vocab_size": 4096, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
      "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": )"
        << context << R"(,
      "rms_norm_eps": 1e-06, "rope_theta": 10000, "tie_word_embeddings": true, "torch_dtype": "float32"})";
    EXPECT_EQ(run_init({.config = config, .out = out, .seed = 1, .threads = 2}), 0);
    return out;
  }
  [[nodiscard]] static Words chat(const std::string& model, const Words& more = {}) {
    Words args = {"chat", "--model", model, "--temperature", "0", "--threads", "2"};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  [[nodiscard]] Words state() const { return {"XDG_STATE_HOME=" + dir_.file("state")}; }
  [[nodiscard]] std::string history() const { return dir_.file("state/strata/chat_history"); }
  // What a person would see as answers, of the same turns in a pipe.
  [[nodiscard]] static std::string answers_of(const std::string& turns, const Words& more = {}) {
    const Ran ran = run_program(chat(kBundled, more), turns);
    EXPECT_EQ(ran.code, 0) << ran.err;
    return ran.out;
  }
  [[nodiscard]] std::string saved(const std::string& name) const {
    return read_bytes(dir_.file(name));
  }

  const TempDir dir_;
};

TEST_F(ChatTest, ATerminalHasHistoryAcrossRuns) {
  for (const bool is_first : {true, false}) {
    Terminal terminal(chat(kBundled), state());
    terminal.expect("> ");
    if (is_first) terminal.type("What is 7 plus 5?\n");
    if (!is_first) terminal.type(std::string(kUp) + kUp + "\n");  // the line before /bye
    EXPECT_THAT(terminal.expect("ended by eos]"), HasSubstr("7 plus 5 is 12."));
    terminal.expect("> ");
    terminal.type("/bye\n");
    EXPECT_EQ(terminal.wait(), 0);
    struct stat info;
    ASSERT_EQ(::stat(history().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
  }
  EXPECT_THAT(read_bytes(history()), HasSubstr("/bye\n"));
}

TEST_F(ChatTest, AHistoryThatCannotBeWrittenIsNoError) {
  std::ofstream(dir_.file("state")) << "a file";
  Terminal terminal(chat(kBundled), state());
  terminal.expect("> ");
  terminal.type("What is 7 plus 5?\n");
  EXPECT_THAT(terminal.expect("ended by eos]"), Not(HasSubstr("rror")));
  terminal.expect("> ");
  terminal.type(kCtrlD);
  EXPECT_EQ(terminal.wait(), 0);
}

TEST_F(ChatTest, LinesAreEdited) {
  Terminal terminal(chat(kBundled), state());
  terminal.expect("> ");
  terminal.type(
      "What is 7 plus 6?\033[D\177"
      "5\n");  // left, backspace
  EXPECT_THAT(terminal.expect("ended by eos]"), HasSubstr("7 plus 5 is 12."));
}

TEST_F(ChatTest, SeveralLinesAreOneTurn) {
  const std::string file = dir_.file("chat.json");
  Terminal terminal(chat(kBundled, {"--max-tokens", "4"}), state());
  const auto turn = [&](const std::string& keys) {
    terminal.expect("> ");
    terminal.type(keys);
    terminal.expect("tokens/s");
  };
  turn("one\ntwo\n/bye\n");                        // pasted
  turn("\033[200~three\rfour\r\033[201~ five\n");  // pasted, and the terminal says so
  terminal.expect("> ");
  terminal.type("\"\"\"six\n");
  terminal.expect("... ");
  terminal.type("\n");
  terminal.expect("... ");
  terminal.type("seven\"\"\"\n");
  terminal.expect("tokens/s");
  turn("\"\"\"eight\"\"\"\n");
  terminal.expect("> ");
  terminal.type("/save " + file + "\n");
  terminal.expect("[saved]");
  const std::string kept = saved("chat.json");
  EXPECT_THAT(kept, HasSubstr(R"("content":"one\ntwo\n/bye")"));
  EXPECT_THAT(kept, HasSubstr(R"("content":"three\nfour\n five")"));
  EXPECT_THAT(kept, HasSubstr(R"("content":"six\n\nseven")"));
  EXPECT_THAT(kept, HasSubstr(R"("content":"eight")"));
  // In a pipe as well, where other lines stay a turn each.
  const Ran piped = run_program(chat(kBundled, {"--max-tokens", "4"}),
                                "\"\"\"\na\nb\n\"\"\"\nc\n/save " + dir_.file("piped.json") + "\n");
  EXPECT_EQ(piped.code, 0) << piped.err;
  EXPECT_THAT(saved("piped.json"), HasSubstr(R"("content":"a\nb"},)"));
  EXPECT_THAT(saved("piped.json"), HasSubstr(R"("content":"c"},)"));
}

TEST_F(ChatTest, CtrlCEndsAnAnswerAndNotTheConversation) {
  Terminal terminal(chat(endless_model(60'000), {"--max-tokens", "50000"}), state());
  terminal.expect("> ");
  terminal.type("Hello\n");
  terminal.expect("Hello");
  ::usleep(300'000);
  terminal.type(kCtrlC);
  terminal.expect("ended by interrupt]");
  terminal.expect("> ");
  terminal.type(kCtrlC);
  terminal.expect("Ctrl-D or /bye leaves");
  terminal.expect("> ");
  terminal.type("/stats\n");
  terminal.expect("questions: 1;");
  terminal.expect("> ");
  terminal.type(kCtrlD);
  EXPECT_EQ(terminal.wait(), 0);
}

// As in an editor's shell: nothing is edited, all else is there.
TEST_F(ChatTest, ADumbTerminalHoldsAConversationToo) {
  Terminal terminal(chat(kBundled), Words{"TERM=dumb"});
  terminal.expect("> ");
  terminal.type("What is 7 plus 5?\n");
  EXPECT_THAT(terminal.expect("ended by eos]"), HasSubstr("7 plus 5 is 12."));
  terminal.expect("> ");
  terminal.type(kCtrlC);
  EXPECT_THAT(terminal.expect("Ctrl-D or /bye leaves"), Not(HasSubstr("\033")));
  terminal.expect("> ");
  terminal.type("/halp\n");
  terminal.expect("no such command");
  terminal.expect("> ");
  terminal.type(kCtrlD);
  EXPECT_EQ(terminal.wait(), 0);
}

// At any time: before the prompt, while an answer comes, behind what was typed ahead, and in the
// instant between a prompt and its read, which the many rounds meet.
TEST_F(ChatTest, NoCtrlDIsTooEarly) {
  const std::string endless = endless_model(60'000);
  for (const Words& variables : {state(), Words{"TERM=dumb"}}) {
    {
      Terminal terminal(chat(kBundled), variables);
      terminal.type(kCtrlD);
      EXPECT_EQ(terminal.wait(), 0) << variables[0];
    }
    {
      Terminal terminal(chat(kBundled), variables);
      terminal.type("What is 7 plus 5?\n");
      terminal.type(kCtrlD);
      terminal.expect("7 plus 5 is 12.");
      EXPECT_EQ(terminal.wait(), 0) << variables[0];
    }
    Terminal terminal(chat(endless, {"--max-tokens", "2000"}), variables);
    terminal.expect("> ");
    terminal.type("Hello\n");
    terminal.expect("Hello");
    ::usleep(50'000);
    terminal.type(kCtrlD);
    terminal.expect("tokens/s");
    EXPECT_EQ(terminal.wait(), 0) << variables[0];
  }
}

TEST_F(ChatTest, NoCtrlCIsTooEarly) {
  for (const Words& variables : {state(), Words{"TERM=dumb"}}) {
    Terminal terminal(chat(kBundled), variables);
    terminal.expect("/bye leaves");
    for (int round = 0; round < 30; ++round) {
      terminal.expect("> ");
      ::usleep(static_cast<useconds_t>(round * 20));
      terminal.type(kCtrlC);
      terminal.expect("Ctrl-D or /bye leaves");
    }
    terminal.expect("> ");
    terminal.type(kCtrlD);
    EXPECT_EQ(terminal.wait(), 0) << variables[0];
  }
}

TEST_F(ChatTest, ASignalLeavesTheTerminalAsItWas) {
  for (const int signal : {SIGTERM, SIGHUP}) {
    Terminal terminal(chat(kBundled), state());
    EXPECT_TRUE(terminal.takes_lines());
    terminal.expect("> ");
    EXPECT_FALSE(terminal.takes_lines());
    terminal.type("half a li");
    terminal.expect("half a li");
    ::kill(terminal.pid(), SIGWINCH);
    ::kill(terminal.pid(), SIGCONT);
    terminal.type("ne");
    terminal.expect("ne");
    ::kill(terminal.pid(), signal);
    terminal.expect("\033[?2004l");
    EXPECT_EQ(terminal.wait(), 128 + signal);
    EXPECT_TRUE(terminal.takes_lines());
  }
}

TEST_F(ChatTest, CommandsSayWhatTheyDo) {
  Terminal terminal(chat(kBundled, {"--max-tokens", "30"}), state());
  const auto say = [&](const std::string& line, const std::string& answer) {
    terminal.expect("> ");
    terminal.type(line + "\n");
    return terminal.expect(answer);
  };
  const std::string help = say("/help", "Ctrl-C ends an answer");
  for (const char* name : {"/help", "/clear", "/system", "/save FILE", "/load FILE", "/regenerate",
                           "/stats", "/bye", "/exit", "/quit"})
    EXPECT_THAT(help, HasSubstr(name));
  say("/halp me", "/halp: no such command; /help lists them");
  say("/regenerate", "there is no question yet");
  say("/save " + dir_.file("x"), "nothing to save yet");
  say("/load", "/load: want the name of a file");
  say("/load " + dir_.file("nothing"), "No such file");
  say("/system", "no system turn");
  say("/system Be brief.", "> ");
  terminal.type("/system\n");
  terminal.expect("system: Be brief.");
  say("What is 7 plus 5?", "ended by eos]");
  say("/save " + kBundled + "/config.json", "want one conversation");
  say("/save " + dir_.file("chat.json"), "[saved]");
  EXPECT_THAT(saved("chat.json"),
              HasSubstr(R"([{"role":"system","content":"Be brief."},{"role":"user")"));
  say("/clear", "> ");
  terminal.type("/stats\n");
  terminal.expect("questions: 0;");
  terminal.expect("> ");
  terminal.type("/exit\n");
  EXPECT_EQ(terminal.wait(), 0);
}

TEST_F(ChatTest, SamplingIsSetOnTheWay) {
  Terminal terminal(chat(endless_model(400), {"--max-tokens", "30"}), state());
  const auto say = [&](const std::string& line, const std::string& answer) {
    terminal.expect("> ");
    terminal.type(line + "\n");
    return terminal.expect(answer);
  };
  // What an answer draws is what the options say, wherever they were said.
  const auto answer = [&] {
    say("One two.", "\033[?2004l");
    return terminal.expect("[30 tokens");
  };
  say("/set", "[greedy, max-tokens 30]");
  const std::string greedy = answer();
  say("/clear", "> ");
  terminal.type("/set temperature 0.9\n");
  terminal.expect("[temperature 0.9, seed ");
  say("/set parameter top_p 0.8", "[temperature 0.9, top-p 0.8, seed ");
  say("/set seed 7", "[temperature 0.9, top-p 0.8, seed 7, max-tokens 30]");
  const std::string drawn = answer();
  EXPECT_NE(drawn, greedy);
  say("/clear", "> ");
  terminal.type("/set seed 7\n");
  terminal.expect("seed 7");
  EXPECT_EQ(answer(), drawn);
  say("/set max-tokens 3", "max-tokens 3]");
  say("Four.", "[3 tokens");
  say("/set temperature hot", "--temperature: got 'hot', want 0 or more");
  say("/set top-p 2", "want above 0 and at most 1");
  say("/set warmth 2", "warmth: no such option; there are temperature, top-p, min-p,");
  say("/set top-k", "/set: want NAME VALUE");
  say("/set", "[temperature 0.9, top-p 0.8, seed 7, max-tokens 3]");
}

TEST_F(ChatTest, NoWordIsBrokenAtTheEdgeOfATerminal) {
  Terminal terminal(chat(kBundled), state());
  terminal.expect("> ");
  set_columns(terminal, 10);
  terminal.type("What is 7 plus 5?\n");
  terminal.expect("7 plus 5\r\nis 12.\r\n[");
}

TEST_F(ChatTest, ExitLeavesATerminalAndIsATurnInAPipe) {
  for (const char* word : {"exit", "quit"}) {
    Terminal terminal(chat(kBundled), state());
    terminal.expect("> ");
    terminal.type(std::string(word) + "\n");
    EXPECT_EQ(terminal.wait(), 0);
    EXPECT_THAT(terminal.unread(), Not(HasSubstr("tokens/s")));
    EXPECT_FALSE(answers_of(std::string(word) + "\n").empty());
  }
}

// Typed, in a pipe, loaded from a file or asked again: the same answers, byte for byte.
TEST_F(ChatTest, WhereTurnsComeFromChangesNoAnswer) {
  const std::string first = "What is 7 plus 5?\n", second = "What is 2 plus 3?\n";
  const std::string piped = answers_of(first + second);
  const std::string file = dir_.file("chat.json");
  const std::string one = answers_of(first + "/save " + file + "\n");
  EXPECT_EQ(one + answers_of("/load " + file + "\n" + second), piped);
  EXPECT_EQ(answers_of(first + second + "/regenerate\n"), piped + piped.substr(one.size()));
  Terminal terminal(chat(kBundled), state());
  std::string typed;
  for (const std::string& line : {first, second}) {
    terminal.expect("> ");
    terminal.type(line);
    terminal.expect("\033[?2004l");  // the line has been read
    const std::string answer = terminal.expect("[");
    typed += answer.substr(0, answer.size() - 1);
    terminal.expect("ended by");
  }
  std::erase(typed, '\r');
  EXPECT_EQ(typed, piped);
}

TEST_F(ChatTest, AFullContextDropsTheOldestTurns) {
  const std::string model = endless_model(160);
  const std::string file = dir_.file("chat.json");
  std::string turns;
  for (int i = 0; i < 6; ++i) turns += "Question " + std::to_string(i) + "?\n";
  const Ran ran = run_program(chat(model, {"--system", "Be brief.", "--max-tokens", "30"}),
                              turns + "/save " + file + "\n");
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("[the context of 160 tokens is full: the oldest question and its "
                                 "answer were dropped]"));
  const std::string kept = saved("chat.json");
  EXPECT_THAT(kept, HasSubstr(R"([{"role":"system","content":"Be brief."},{"role":"user")"));
  EXPECT_THAT(kept, Not(HasSubstr("Question 0?")));
  EXPECT_THAT(kept, HasSubstr("Question 5?"));
}

TEST_F(ChatTest, ATurnThatIsTooLongKeepsTheConversation) {
  Terminal terminal(chat(endless_model(160), {"--max-tokens", "20"}), state());
  terminal.expect("> ");
  terminal.type("Hello\n");
  terminal.expect("tokens/s");
  terminal.expect("> ");
  std::string words;
  for (int i = 0; i < 200; ++i) words += " word";
  terminal.type(words + "\n");
  terminal.expect("the model's context is 160; shorten it");
  terminal.expect("> ");
  terminal.type("/save " + dir_.file("chat.json") + "\n");
  terminal.expect("[saved]");
  EXPECT_THAT(saved("chat.json"), HasSubstr("Hello"));
  EXPECT_THAT(saved("chat.json"), Not(HasSubstr("word")));
}

TEST_F(ChatTest, WhatIsNoConversationIsNotLoaded) {
  const std::string file = dir_.file("chat.json");
  const std::pair<const char*, const char*> cases[] = {
      {"{", "JSON at byte 1"},
      {R"({"messages":[],"messages":[]})", "the key \"messages\" appears twice"},
      {"[]", "want one conversation"},
      {R"({"messages":[],"more":1})", "want one conversation"},
      {R"({"messages":[1]})", "messages[0]: want {"},
      {R"({"messages":[{"role":"user","content":"a","x":1}]})", "messages[0]: want {"},
      {R"({"messages":[{"role":"assistant","content":"a"}]})",
       "messages[0]: role: got 'assistant', want user or system"},
      {R"({"messages":[{"role":"user","content":"a"},{"role":"user","content":"b"}]})",
       "messages[1]: role: got 'user', want assistant"},
      {R"({"messages":[{"role":"user","content":"a"}]})", "a question without its answer"}};
  for (const auto& [content, fault] : cases) {
    std::ofstream(file) << content;
    const Ran ran = run_program(chat(kBundled), "/load " + file + "\n");
    EXPECT_EQ(ran.code, 2) << content;
    EXPECT_THAT(ran.err, HasSubstr(fault)) << content;
  }
}

TEST_F(ChatTest, APipeHasNothingOfATerminal) {
  const Ran ran = run_program(chat(kBundled), "What is 7 plus 5?\n", state());
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.out, "7 plus 5 is 12.\n");
  EXPECT_THAT(ran.err, Not(HasSubstr("\033")));
  EXPECT_THAT(ran.err, Not(HasSubstr("> ")));
  EXPECT_FALSE(std::filesystem::exists(history()));
}

TEST_F(ChatTest, LongAnswersEndWhereTheyAreAtASignal) {
  const std::string model = endless_model(60'000);
  for (const int signal : {SIGINT, SIGTERM}) {
    for (const Words& args :
         {Words{"generate", "--model", model, "--prompt", "one two", "--max-tokens", "50000"},
          Words{"chat", "--model", model, "--prompt", "one two", "--max-tokens", "50000"}}) {
      Words greedy = args;
      greedy.insert(greedy.end(), {"--temperature", "0", "--threads", "2"});
      Process process(greedy);
      ::usleep(200'000);
      while (process.out().empty()) ::usleep(2'000);
      process.signal(signal);
      const Ran ran = process.wait();
      EXPECT_EQ(ran.code, 128 + signal) << args[0];
      EXPECT_THAT(ran.err, HasSubstr("ended by interrupt"));
      EXPECT_TRUE(ran.out.ends_with("\n"));
    }
  }
}

TEST_F(ChatTest, GenerateReadsStdin) {
  const auto generate = [](const Words& more, const std::string& input) {
    Words args = {"generate", "--model", kBundled, "--max-tokens", "8", "--temperature", "0"};
    args.insert(args.end(), more.begin(), more.end());
    return run_program(args, input);
  };
  const std::string named = generate({"--prompt", "Once upon\na time"}, "").out;
  EXPECT_EQ(generate({"--prompt", "-"}, "Once upon\na time\n").out, named);
  EXPECT_EQ(generate({}, "Once upon\na time").out, named);
  const Ran empty = generate({}, "");
  EXPECT_EQ(empty.code, 2);
  EXPECT_THAT(empty.err, HasSubstr("--prompt: got no token; the text is empty"));
  // A prompt that is given is the prompt: nothing waits for stdin.
  for (const char* command : {"generate", "chat"}) {
    Terminal terminal({command, "--model", kBundled, "--prompt", ""});
    terminal.expect("the text is empty");
    EXPECT_EQ(terminal.wait(), 2);
    const Ran piped = run_program({command, "--model", kBundled, "--prompt", ""}, "not read\n");
    EXPECT_EQ(piped.code, 2);
    EXPECT_EQ(piped.out, "");
  }
  Terminal terminal({"generate", "--model", kBundled});
  terminal.expect("want --prompt TEXT, or --prompt - or a pipe");
  EXPECT_EQ(terminal.wait(), 2);
}

}  // namespace
}  // namespace strata::apps
