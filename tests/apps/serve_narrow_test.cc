// SPDX-License-Identifier: Apache-2.0
// A served model whose weights are in 4 bits: eight tenants train and sample at once, and get what
// they get over the same weights dequantised.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/apps/serve_run.h"

namespace strata::apps {
namespace {

using ::testing::HasSubstr;

// One tenant at a server; its answers as they came, without what is theirs alone: names of
// requests.
class Tenant {
 public:
  Tenant(int port, int number) : port_(port), number_(number) {}

  static std::string key(int number) { return fmt::format("tml-{:0>40}", number); }

  void work() {
    const std::string session =
        text(post("create_session", R"({"tags":[],"sdk_version":"0.38.0"})"), "session_id");
    const std::string model =
        text(done(post("create_model", fmt::format(R"({{"session_id":"{}","model_seq_id":0,)"
                                                   R"("base_model":"tiny","lora_config":)"
                                                   R"({{"rank":4,"seed":{},"train_unembed":true,)"
                                                   R"("train_mlp":true,"train_attn":true}}}})",
                                                   session, number_))),
             "model_id");
    const int first = 5 + number_;
    for (int step = 0; step < 3; ++step) {
      answers += done(post(
          "forward_backward",
          fmt::format(R"({{"model_id":"{}","seq_id":{},"forward_backward_input":{{"loss_fn":)"
                      R"("cross_entropy","data":[{{"model_input":{{"chunks":[{{"type":)"
                      R"("encoded_text","tokens":[{},6,7,8]}}]}},"loss_fn_inputs":)"
                      R"({{"target_tokens":{{"data":[6,7,8,9],"dtype":"int64","shape":[4]}},)"
                      R"("weights":{{"data":[1,1,1,1],"dtype":"float32","shape":[4]}}}}}}]}}}})",
                      model, 2 * step + 1, first)));
      done(post("optim_step",
                fmt::format(R"({{"model_id":"{}","seq_id":{},"adam_params":{{"learning_rate":0.02,)"
                            R"("beta1":0.9,"beta2":0.95,"eps":1e-12}}}})",
                            model, 2 * step + 2)));
    }
    const std::string path =
        text(done(post("save_weights_for_sampler",
                       fmt::format(R"({{"model_id":"{}","seq_id":7,"path":"s"}})", model))),
             "path");
    const std::string sampler = text(
        post("create_sampling_session",
             fmt::format(R"({{"session_id":"{}","sampling_session_seq_id":0,"model_path":"{}"}})",
                         session, path)),
        "sampling_session_id");
    answers += done(
        post("asample",
             fmt::format(R"({{"sampling_session_id":"{}","seq_id":1,"num_samples":2,"prompt":{{)"
                         R"("chunks":[{{"type":"encoded_text","tokens":[{},6]}}]}},)"
                         R"("sampling_params":{{"max_tokens":12,"seed":{},"temperature":0.7}}}})",
                         sampler, first, number_)));
  }

  std::string answers;

 private:
  std::string post(const std::string& what, const std::string& body) {
    const Reply reply = ask(port_, "/api/v1/" + what, body, key(number_));
    EXPECT_EQ(reply.status, 200) << what << ": " << reply.body;
    return reply.body;
  }
  static std::string text(const std::string& body, const char* field) {
    boost::json::error_code error;
    const boost::json::value value = boost::json::parse(body, error);
    if (error || !value.is_object() || !value.get_object().contains(field)) {
      ADD_FAILURE() << field << ": " << body;
      return {};
    }
    return std::string(value.at(field).as_string());
  }
  std::string done(const std::string& accepted) {
    const std::string body = fmt::format(R"({{"request_id":"{}"}})", text(accepted, "request_id"));
    for (int i = 0; i < 100; ++i) {
      const Reply reply = ask(port_, "/api/v1/retrieve_future", body, key(number_));
      if (reply.status == 408) continue;
      EXPECT_EQ(reply.status, 200) << reply.body;
      return reply.body;
    }
    ADD_FAILURE() << "never done";
    return {};
  }

  int port_, number_;
};

class ServeNarrowTest : public ServeStartTest {
 protected:
  static constexpr int kTenants = 8;

  void SetUp() override {
    ServeStartTest::SetUp();
    const Ran ran = run_program({"convert", "--model", STRATA_SOURCE_DIR "/models/tiny-qwen3",
                                 "--to", "gguf", "--type", "q4_0", "--out", file()});
    ASSERT_EQ(ran.code, 0) << ran.err;
    std::ofstream keys(root_ + "/keys");
    for (int i = 0; i < kTenants; ++i) keys << Tenant::key(i) << " tenant-" << i << "\n";
  }
  [[nodiscard]] std::string file() const { return root_ + "/tiny.gguf"; }

  // What each tenant got.
  std::vector<std::string> answers(const std::string& weights, const std::string& row) {
    const auto server = serve({"--model", "tiny=" + file(), "--keys", root_ + "/keys", "--data",
                               root_ + "/" + weights, "--listen", "127.0.0.1:0", "--weights",
                               weights, "--verbose"});
    EXPECT_THAT(server->out(), HasSubstr(row));
    const int port = port_of(server->out());
    std::vector<Tenant> tenants;
    for (int i = 0; i < kTenants; ++i) tenants.emplace_back(port, i);
    {
      std::vector<std::jthread> threads;
      for (Tenant& tenant : tenants) threads.emplace_back([&] { tenant.work(); });
    }
    EXPECT_EQ(end(*server), 0);
    std::vector<std::string> out;
    for (const Tenant& tenant : tenants) out.push_back(tenant.answers);
    return out;
  }
};

TEST_F(ServeNarrowTest, EightTenantsGetWhatTheyGetOverBf16) {
  const std::vector<std::string> narrow = answers("auto", "weights, in 4 to 8 bits");
  const std::vector<std::string> bf16 = answers("bf16", "weights, dequantised from");
  for (int i = 0; i < kTenants; ++i) {
    const auto at = static_cast<size_t>(i);
    EXPECT_GT(narrow[at].size(), 100u);
    EXPECT_EQ(narrow[at], bf16[at]) << "tenant " << i;
    EXPECT_NE(narrow[at], narrow[(at + 1) % kTenants]);
  }
  // What they saved remembers the base's numbers.
  int num_saved = 0;
  for (const auto& entry : fs::recursive_directory_iterator(root_ + "/auto")) {
    if (entry.path().filename() != "adapter_model.safetensors") continue;
    ++num_saved;
    EXPECT_THAT(content(entry.path()), HasSubstr("strata.base_types"));
  }
  EXPECT_GE(num_saved, kTenants);
}

}  // namespace
}  // namespace strata::apps
