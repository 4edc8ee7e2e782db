// SPDX-License-Identifier: Apache-2.0
// strata serve, the program itself: how it starts and ends, and adapters that it serves by name.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <boost/json.hpp>
#include <memory>

#include "server/base_names.h"
#include "tests/apps/program.h"
#include "tests/apps/train_fixture.h"

namespace strata::apps {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

// A socket at this port of 127.0.0.1, listening or connected; 0: any free one.
class Socket {
 public:
  Socket(int port, bool listens) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    const int on = 1;
    ::setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    address_.sin_family = AF_INET;
    address_.sin_port = htons(static_cast<uint16_t>(port));
    address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* where = reinterpret_cast<sockaddr*>(&address_);
    is_open_ = listens ? ::bind(fd_, where, sizeof(address_)) == 0 && ::listen(fd_, 1) == 0
                       : ::connect(fd_, where, sizeof(address_)) == 0;
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() { ::close(fd_); }
  [[nodiscard]] bool is_open() const { return is_open_; }
  [[nodiscard]] int fd() const { return fd_; }

 private:
  int fd_;
  sockaddr_in address_ = {};
  bool is_open_ = false;
};

struct Reply {
  int status = 0;
  std::string body;
};

// Without a body GET, else POST.
Reply ask(int port, const std::string& path, const std::string& body = "") {
  const Socket socket(port, /*listens=*/false);
  std::string text = (body.empty() ? "GET " : "POST ") + path +
                     " HTTP/1.1\r\nHost: 127.0.0.1:" + std::to_string(port) +
                     "\r\nX-API-Key: tml-any\r\nConnection: close\r\n";
  if (!body.empty()) {
    text +=
        "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
  }
  text += "\r\n" + body;
  EXPECT_EQ(::send(socket.fd(), text.data(), text.size(), MSG_NOSIGNAL), std::ssize(text));
  std::string answer;
  char bytes[4096];
  for (ssize_t count; (count = ::recv(socket.fd(), bytes, sizeof(bytes), 0)) > 0;)
    answer.append(bytes, static_cast<size_t>(count));
  const size_t head_end = answer.find("\r\n\r\n");
  if (head_end == std::string::npos) return {};
  return {.status = std::atoi(answer.c_str() + 9), .body = answer.substr(head_end + 4)};
}

boost::json::object object_of(const Reply& reply) {
  EXPECT_EQ(reply.status, 200) << reply.body;
  boost::json::error_code error;
  const boost::json::value value = boost::json::parse(reply.body, error);
  return value.is_object() ? value.get_object() : boost::json::object{};
}

class ServeStartTest : public TrainTest {
 protected:
  // Started in the test's folder, where a short command line puts its data.
  std::unique_ptr<Process> serve(const Words& more, const std::string& until = "samples of 2,048") {
    Words args = {"serve", "--memory", "2GiB", "--threads", "1"};
    args.insert(args.end(), more.begin(), more.end());
    auto process = std::make_unique<Process>(args, "", Words{"PWD=" + root_});
    EXPECT_TRUE(process->await(until)) << process->out() << process->err();
    return process;
  }
  static int port_of(const std::string& out,
                     const std::string& of = "listening on http://127.0.0.1:") {
    const size_t at = out.find(of);
    return at == std::string::npos ? 0 : std::atoi(out.c_str() + at + of.size());
  }
  static int end(Process& process, int signal = SIGINT) {
    process.signal(signal);
    return process.wait().code;
  }
  [[nodiscard]] Words named(const Words& more = {}) const {
    Words args = {"--model",       "tiny=" + model(), "--no-keys",  "--data",
                  root_ + "/data", "--listen",        "127.0.0.1:0"};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
};

TEST_F(ServeStartTest, TheAddressComesFirstAndCtrlCSaysWhatItDoes) {
  const auto server = serve(named({"--metrics-listen", "127.0.0.1:0"}));
  EXPECT_THAT(server->out(), StartsWith("listening on http://127.0.0.1:"));
  EXPECT_LT(server->out().find("metrics on "), server->out().find("weights"));
  EXPECT_EQ(end(*server), 0);
  EXPECT_THAT(server->err(),
              HasSubstr("Ctrl-C: new work is refused; the running pass and queued "
                        "saves are finished, for 30 s at most (once more: at once)"));
  EXPECT_THAT(server->err(), HasSubstr("strata: stopped\n"));
}

TEST_F(ServeStartTest, ADirectoryAloneIsServedToThisMachine) {
  fs::copy(model(), root_ + "/my model (1)");
  const fs::path before = fs::current_path();
  fs::current_path(root_);
  const auto server = serve({"my model (1)", "--listen", "127.0.0.1:0"});
  fs::current_path(before);
  EXPECT_THAT(
      server->out(),
      HasSubstr("my model (1) stands for --model my-model--1-=my model (1) --no-keys --data "
                "./strata-my-model--1-:"));
  const int port = port_of(server->out());
  EXPECT_THAT(ask(port, "/api/v1/get_server_capabilities").body,
              HasSubstr(R"("model_name":"my-model--1-")"));
  EXPECT_TRUE(fs::exists(root_ + "/strata-my-model--1-/strata.db"));
  EXPECT_EQ(end(*server, SIGTERM), 0);
}

TEST_F(ServeStartTest, ElsewhereKeysAndDataAreAskedFor) {
  const auto fault = [&](const Words& args, const Words& variables = {}) {
    Words all = {"serve"};
    all.insert(all.end(), args.begin(), args.end());
    const Ran ran = run_program(all, "", variables);
    EXPECT_EQ(ran.code, 2);
    return ran.err;
  };
  EXPECT_THAT(fault({model(), "--listen", "0.0.0.0:0"}), HasSubstr("strata keygen"));
  EXPECT_THAT(fault({model(), "--metrics-listen", "0.0.0.0:0"}), HasSubstr("strata keygen"));
  EXPECT_THAT(fault({model(), "--keys", root_ + "/keys"}), HasSubstr("--data"));
  EXPECT_THAT(fault({model()}, {"STRATA_KEYS=tml-0123456789012345678901234"}), HasSubstr("--data"));
  EXPECT_THAT(fault({model(), "--model", "a=" + model()}), HasSubstr("--model are given"));
  EXPECT_THAT(fault({"--model", model()}),
              HasSubstr("want NAME=DIR, like model=" + model() + "; or strata serve " + model()));
  EXPECT_THAT(fault({root_ + "/nowhere"}), HasSubstr("no such directory"));
}

TEST_F(ServeStartTest, AMetricsPortThatNobodyNamedMayBeTaken) {
  const Socket other(9464, /*listens=*/true);  // unless one has it already
  const auto server = serve(named());
  EXPECT_THAT(server->err(), HasSubstr("127.0.0.1:9464"));
  EXPECT_THAT(server->err(), HasSubstr("is on port"));
  const int port = port_of(server->out(), "metrics on http://127.0.0.1:");
  EXPECT_NE(port, 9464);
  EXPECT_EQ(ask(port, "/metrics").status, 200);
  EXPECT_EQ(end(*server), 0);
  Words args = named({"--metrics-listen", "127.0.0.1:9464", "--memory", "2GiB"});
  args.insert(args.begin(), "serve");
  EXPECT_THAT(run_program(args).err, HasSubstr("--metrics-listen 127.0.0.1:9464"));
}

TEST(ServedName, IsTheFoldersWithoutWhatANameMayNotHave) {
  EXPECT_EQ(server::base_name_for("/models/Qwen3 0.6B"), "Qwen3-0.6B");
  EXPECT_EQ(server::base_name_for("/models/tiny/"), "tiny");
  EXPECT_EQ(server::base_name_for("/cache/hub/models--Qwen--Qwen3-0.6B/snapshots/c1899de2"),
            "Qwen/Qwen3-0.6B");
  EXPECT_EQ(server::base_name_for("/"), "model");
}

class ServedAdapterTest : public ServeStartTest {
 protected:
  // The answer to a greedy sample of the model of this name, as bytes.
  static std::string sample(int port, const std::string& name) {
    const std::string session{
        object_of(ask(port, "/api/v1/create_session",
                      R"({"type":"create_session","tags":[],"sdk_version":"0.38.0"})"))
            .at("session_id")
            .as_string()};
    const std::string sampler{
        object_of(ask(port, "/api/v1/create_sampling_session",
                      R"({"session_id":")" + session + R"(","sampling_session_seq_id":0,)" +
                          R"("base_model":")" + name + R"("})"))
            .at("sampling_session_id")
            .as_string()};
    const std::string request{
        object_of(ask(port, "/api/v1/asample",
                      R"({"sampling_session_id":")" + sampler +
                          R"(","seq_id":0,"num_samples":1,"prompt_logprobs":true,)" +
                          R"("prompt":{"chunks":[{"type":"encoded_text","tokens":[5,6,7,8]}]},)" +
                          R"("sampling_params":{"max_tokens":8,"temperature":0}})"))
            .at("request_id")
            .as_string()};
    const Reply reply =
        ask(port, "/api/v1/retrieve_future", R"({"request_id":")" + request + R"("})");
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.body;
  }
  // With weights far from those of the base.
  std::string trained(const std::string& name, double lr) {
    TrainOptions o = options(name);
    o.steps = 3;
    o.lr = lr;
    EXPECT_EQ(run_train(o), 0);
    return o.out;
  }
};

TEST_F(ServedAdapterTest, IsSampledByItsNameAndNotTrained) {
  const std::string one = trained("one", 1e-2), two = trained("two", 5e-2);
  const auto server = serve(named({"--adapter", "my-one=" + one, "--adapter", "my-two=" + two,
                                   "--alias", "again=my-one", "--metrics-listen", "127.0.0.1:0"}));
  const int port = port_of(server->out());
  const std::string models = ask(port, "/api/v1/get_server_capabilities").body;
  for (const char* name : {"tiny", "my-one", "my-two", "again"})
    EXPECT_THAT(models, HasSubstr(std::string(R"("model_name":")") + name));
  EXPECT_EQ(std::count(models.begin(), models.end(), '{'), 5);
  const std::string base = sample(port, "tiny"), of_one = sample(port, "my-one");
  EXPECT_NE(of_one, base);
  EXPECT_NE(sample(port, "my-two"), of_one);
  EXPECT_EQ(sample(port, "my-one"), of_one);
  EXPECT_EQ(sample(port, "again"), of_one);
  EXPECT_EQ(sample(port, "tiny"), base);
  const std::string session{
      object_of(ask(port, "/api/v1/create_session", R"({"tags":[],"sdk_version":"0.38.0"})"))
          .at("session_id")
          .as_string()};
  const Reply refused =
      ask(port, "/api/v1/create_model",
          R"({"session_id":")" + session +
              R"(","model_seq_id":0,"base_model":"my-one","lora_config":{"rank":8}})");
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.body, HasSubstr("'my-one' is an adapter that this server samples and does "
                                      "not train; train its base model 'tiny'"));
  EXPECT_EQ(end(*server), 0);
}

TEST_F(ServedAdapterTest, IsCheckedAtTheStart) {
  const auto fault = [&](const std::string& adapter, const Words& more = {}) {
    Words args =
        named({"--memory", "2GiB", "--adapter", adapter, "--metrics-listen", "127.0.0.1:0"});
    args.insert(args.begin(), "serve");
    args.insert(args.end(), more.begin(), more.end());
    const Ran ran = run_program(args);
    EXPECT_EQ(ran.code, 2) << ran.err;
    return ran.err;
  };
  const std::string adapter = trained("one", 1e-2);
  EXPECT_THAT(fault("x"), HasSubstr("--adapter: got 'x', want NAME=VALUE"));
  EXPECT_THAT(fault("x=" + root_ + "/nowhere"), HasSubstr("--adapter x: '"));
  EXPECT_THAT(fault("x=" + model()), HasSubstr("has no adapter_config.json; is it a PEFT LoRA"));
  EXPECT_THAT(fault("tiny=" + adapter), HasSubstr("the name 'tiny' is given twice"));
  EXPECT_THAT(fault("x=" + adapter, {"--max-rank", "2"}),
              HasSubstr("has rank 4, and --max-rank is 2; raise it"));
  fs::copy(model(), root_ + "/other");
  fs::copy(adapter, root_ + "/stray");
  std::ofstream(root_ + "/stray/adapter_config.json")
      << R"({"peft_type":"LORA","r":4,"lora_alpha":4,"base_model_name_or_path":"Org/Else"})";
  EXPECT_THAT(fault("x=" + root_ + "/stray", {"--model", "other=" + root_ + "/other"}),
              HasSubstr("is 'Org/Else', which is none of the served models: tiny, other"));
}

}  // namespace
}  // namespace strata::apps
