// SPDX-License-Identifier: Apache-2.0
// Checkpoints of a server taken out: its archive as an adapter of merge and convert, and the merged
// model that it hands out itself (serve --merged).
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/serve/merger.h"
#include "checkpoint/tar.h"
#include "tests/apps/serve_run.h"

namespace strata::apps {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ServeMergedTest : public ServeStartTest {
 protected:
  static boost::json::object done(int port, const Reply& accepted) {
    const std::string id{object_of(accepted).at("request_id").as_string()};
    const std::string body = R"({"request_id":")" + id + R"("})";
    for (int i = 0; i < 100; ++i) {
      const Reply reply = ask(port, "/api/v1/retrieve_future", body);
      if (reply.status != 408) return object_of(reply);
    }
    ADD_FAILURE() << "never done";
    return {};
  }
  // Trains an adapter of every module for some steps, saves it under the name, and returns its run.
  static std::string train(int port, const std::string& name) {
    const std::string session{
        object_of(ask(port, "/api/v1/create_session", R"({"tags":[],"sdk_version":"0.38.0"})"))
            .at("session_id")
            .as_string()};
    const std::string model{
        done(port, ask(port, "/api/v1/create_model",
                       R"({"session_id":")" + session +
                           R"(","model_seq_id":0,"base_model":"tiny","lora_config":{"rank":4,)" +
                           R"("train_unembed":true,"train_mlp":true,"train_attn":true}})"))
            .at("model_id")
            .as_string()};
    int seq = 1;
    const auto op = [&](const char* what, const std::string& fields) {
      const std::string body =
          fmt::format(R"({{"model_id":"{}","seq_id":{},{}}})", model, seq++, fields);
      const Reply reply = ask(port, std::string("/api/v1/") + what, body);
      return reply;
    };
    for (int step = 0; step < 3; ++step) {
      const Reply pass = op(
          "forward_backward",
          R"("forward_backward_input":{"loss_fn":"cross_entropy","data":[{"model_input":{"chunks":)"
          R"([{"type":"encoded_text","tokens":[5,6,7,8]}]},"loss_fn_inputs":{"target_tokens":)"
          R"({"data":[6,7,8,9],"dtype":"int64","shape":[4]},"weights":{"data":[1,1,1,1],)"
          R"("dtype":"float32","shape":[4]}}}]})");
      EXPECT_EQ(pass.status, 200) << pass.body;
      done(port, op("optim_step", R"("adam_params":{"learning_rate":0.02,"beta1":0.9,"beta2":0.95,)"
                                  R"("eps":1e-12})"));
    }
    done(port, op("save_weights", R"("path":")" + name + "\""));
    return model;
  }
  // The bytes behind an archive's URL.
  static std::string download(int port, const std::string& target) {
    const Reply reply = ask(port, "/api/v1/" + target);
    const std::string url{object_of(reply).at("url").as_string()};
    const Reply file = ask(port, url.substr(url.find("/api/")));
    EXPECT_EQ(file.status, 200);
    return file.body;
  }
  // The tar's files, in the folder.
  static void unpack(const std::string& tar, const std::string& folder) {
    fs::create_directories(folder);
    std::ofstream(folder + ".tar", std::ios::binary) << tar;
    TarReader reader(folder + ".tar");
    while (const auto entry = reader.next()) {
      std::ofstream out(folder + "/" + entry->name, std::ios::binary);
      reader.read(*entry, [&](std::string_view piece) { out << piece; });
    }
  }
};

// Both ways give the same model to the byte, and it is another one than the base.
TEST_F(ServeMergedTest, TheServersMergedArchiveIsWhatMergeMakesOfItsArchive) {
  const auto server = serve(named({"--metrics-listen", "127.0.0.1:0", "--merged", "--verbose"}),
                            "samples of 2,048");
  EXPECT_THAT(server->out(), HasSubstr("requests' merging, at most"));
  const int port = port_of(server->out());
  const std::string run = train(port, "a");
  const std::string archive = fmt::format("training_runs/{}/checkpoints/weights/a/archive", run);
  unpack(download(port, archive + "?merged=true"), root_ + "/merged");
  const std::string tar = root_ + "/a.tar";
  std::ofstream(tar, std::ios::binary) << download(port, archive);
  EXPECT_EQ(ask(port, "/api/v1/" + archive + "?merged=maybe").status, 400);
  EXPECT_EQ(end(*server), 0);

  const Words both = {"--model", model(), "--adapter", tar};
  const auto run_command = [&](Words args) {
    args.insert(args.end(), both.begin(), both.end());
    const Ran ran = run_program(args);
    EXPECT_EQ(ran.code, 0) << ran.err;
    return ran.out;
  };
  EXPECT_THAT(run_command({"merge", "--out", root_ + "/own"}),
              HasSubstr("embedding and head are apart now"));
  int num_files = 0;
  for (const auto& file : fs::directory_iterator(root_ + "/own")) {
    const std::string name = file.path().filename();
    if (name == "model.safetensors") continue;  // in another order
    EXPECT_EQ(read_bytes(file.path()), read_bytes(root_ + "/merged/" + name)) << name;
    ++num_files;
  }
  EXPECT_GE(num_files, 4);
  for (const char* from : {"own", "merged"}) {
    const Ran ran = run_program(
        {"convert", "--model", root_ + "/" + from, "--out", root_ + "/" + from + "-sorted"});
    EXPECT_EQ(ran.code, 0) << ran.err;
  }
  EXPECT_EQ(read_bytes(root_ + "/own-sorted/model.safetensors"),
            read_bytes(root_ + "/merged-sorted/model.safetensors"));
  EXPECT_NE(read_bytes(root_ + "/own/model.safetensors"),
            read_bytes(model() + "/model.safetensors"));
  run_command({"convert", "--to", "gguf", "--out", root_ + "/a.gguf"});
}

// Of a tied model whose adapter changes the head: the largest that there is.
TEST_F(ServeMergedTest, AMergedModelTakesWhatIsBookedForIt) {
  constexpr int64_t kHeaders = 64 << 10;
  TrainOptions o = options("adapter");
  o.model = root_ + "/bf16";
  o.targets = "q_proj,lm_head";
  o.steps = 2;
  ASSERT_EQ(run_init({.config = root_ + "/config", .out = o.model, .dtype = "bf16", .threads = 2}),
            0);
  ASSERT_EQ(run_train(o), 0);
  const Merging merging = make_merging({o.model}, o.rank, model::ExpertRank::kDivided);
  const std::string to = root_ + "/merged";
  fs::create_directories(to);
  // On a thread of its own: it yields to others.
  std::thread([&] { EXPECT_TRUE(merging.merger.write(0, o.out, to)); }).join();
  int64_t written = 0;
  for (const auto& file : fs::directory_iterator(to))
    written += static_cast<int64_t>(file.file_size());
  EXPECT_GE(merging.merger.bytes.at(0), written);
  EXPECT_LE(merging.merger.bytes.at(0), written + kHeaders);
}

TEST_F(ServeMergedTest, IsAskedForByTheOperator) {
  const auto server = serve(named({"--metrics-listen", "127.0.0.1:0"}));
  const int port = port_of(server->out());
  const std::string run = train(port, "a");
  const Reply refused = ask(
      port, fmt::format("/api/v1/training_runs/{}/checkpoints/weights/a/archive?merged=1", run));
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.body, HasSubstr("serve --merged"));
  EXPECT_EQ(end(*server), 0);
}

TEST_F(ServeMergedTest, ARoomThatIsTooSmallIsNamed) {
  const auto server =
      serve(named({"--metrics-listen", "127.0.0.1:0", "--merged", "--max-archive-bytes", "64KiB"}));
  const int port = port_of(server->out());
  const std::string run = train(port, "a");
  const Reply refused = ask(
      port, fmt::format("/api/v1/training_runs/{}/checkpoints/weights/a/archive?merged=1", run));
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.body, HasSubstr("may have 65536 (--max-archive-bytes)"));
  EXPECT_EQ(end(*server), 0);
}

}  // namespace
}  // namespace strata::apps
