// SPDX-License-Identifier: Apache-2.0
// Operations over a fake dispatch: what each hands on, and what its end is told as.
#include "server/tinker/operations/operation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/tinker/service/house.h"

namespace strata::server {
namespace {

using ::testing::HasSubstr;

std::string number(const std::string& model, int seq_id, const std::string& more = "") {
  return R"({"model_id":")" + model + R"(","seq_id":)" + std::to_string(seq_id) + more + "}";
}

TEST(Operations, AStepHandsOnItsNumbersAndRefusesByName) {
  House house;
  const std::string model = house.model(house.session());
  const Response taken = house.post(
      "optim_step", number(model, 1, R"(,"adam_params":{"learning_rate":0.5,"beta1":0.25})"));
  ASSERT_EQ(taken.status, 200) << taken.body;
  const api::Command& command = house.submitted.back();
  EXPECT_EQ(command.model.text, model);
  EXPECT_EQ(command.seq_id, 1);
  const auto& step = std::get<api::OptimStep>(command.op);
  EXPECT_EQ(step.adamw.lr, 0.5);
  EXPECT_EQ(step.adamw.beta1, 0.25);
  EXPECT_THAT(house.post("optim_step", number(model, 2, R"(,"optimizer_params":{})")).body,
              HasSubstr("optimizer_params: is not supported"));
  house.settle(House::text(taken, "request_id"), api::StepResult{});
  EXPECT_EQ(house.poll(House::text(taken, "request_id")).status, 200);
}

// What it computes with has 32 bits.
TEST(Operations, AStepsNumbersAreThoseThatItComputesWith) {
  House house;
  const std::string model = house.model(house.session());
  int seq_id = 0;
  for (const char* bad :
       {R"("learning_rate":1e308)", R"("eps":1e-320)", R"("eps":1e-60)", R"("weight_decay":1e300)",
        R"("beta1":0.99999999999)", R"("grad_clip_norm":1e39)"}) {
    const Response refused = house.post(
        "optim_step", number(model, ++seq_id, R"(,"adam_params":{)" + std::string(bad) + "}"));
    EXPECT_EQ(refused.status, 400) << bad;
    EXPECT_THAT(refused.body, HasSubstr("adam_params")) << bad;
  }
  const Response taken = house.post(
      "optim_step", number(model, ++seq_id, R"(,"adam_params":{"eps":1e-30,"beta2":0.9999999})"));
  EXPECT_EQ(taken.status, 200) << taken.body;
}

// A refusal uses its number up: the next one need not wait for it.
TEST(Operations, WhatIsRefusedUsesItsNumberUp) {
  House house;
  const std::string model = house.model(house.session());
  EXPECT_EQ(house.post("optim_step", number(model, 1, R"(,"adam_params":{"beta1":2})")).status,
            400);
  EXPECT_EQ(house.consumed, (std::vector<int64_t>{1}));
  EXPECT_EQ(house.post("optim_step", number(model, 0)).status, 400);
  EXPECT_EQ(house.post("optim_step", R"({"seq_id":1})").status, 400);
  EXPECT_EQ(house.post("optim_step", number("none", 1)).status, 404);
  EXPECT_EQ(house.consumed.size(), 1u) << "no number of a model's";
}

TEST(Operations, ForwardReadsForwardInputAndKeepsNoGradient) {
  House house;
  const std::string model = house.model(house.session());
  const std::string data = R"({"loss_fn":"cross_entropy","data":[{"model_input":{"chunks":[
      {"type":"encoded_text","tokens":[1]}]},"loss_fn_inputs":{"target_tokens":{"data":[1],
      "dtype":"int64"},"weights":{"data":[1],"dtype":"float32"}}}]})";
  const Response taken = house.post("forward", number(model, 1, ",\"forward_input\":" + data));
  ASSERT_EQ(taken.status, 200) << taken.body;
  EXPECT_TRUE(std::get<api::ForwardBackward>(house.submitted.back().op).forward_only);
  house.post("forward_backward", number(model, 2, ",\"forward_backward_input\":" + data));
  EXPECT_FALSE(std::get<api::ForwardBackward>(house.submitted.back().op).forward_only);
}

// A number as JSON takes as long as many of protobuf's.
TEST(Operations, AResultOfThousandsOfNumbersIsWrittenAsJsonElsewhere) {
  House house;
  const std::string model = house.model(house.session());
  const Response pass = house.post("forward", number(model, 1, R"(,"forward_input":{
      "loss_fn":"cross_entropy","data":[{"model_input":{"chunks":[{"tokens":[1]}]},"loss_fn_inputs":{
      "target_tokens":{"data":[1],"dtype":"int64"},"weights":{"data":[1],"dtype":"float32"}}}]})"));
  api::ForwardBackwardResult result;
  result.data = {{.logprobs = std::vector<float>(5000, -1.25f)}};
  house.settle(House::text(pass, "request_id"), result);
  std::vector<Response> answers;
  const Respond keep = [&](Response answer) { answers.push_back(std::move(answer)); };
  house.poll(House::text(pass, "request_id"), keep);
  EXPECT_EQ(house.num_parsed, 0);
  house.poll(House::text(pass, "request_id"), keep, "application/json");
  EXPECT_EQ(house.num_parsed, 1);
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[0].content_type, kProtobuf);
  EXPECT_THAT(answers[1].bytes(), HasSubstr("-1.25,-1.25"));
}

// Each record that data name is asked of the store.
TEST(Operations, DataThatMayNameRecordsAreReadElsewhere) {
  House house;
  const std::string model = house.model(house.session());
  const auto pass = [&](int seq_id, const std::string& loss) {
    return house.post(
        "forward",
        number(model, seq_id, R"(,"forward_input":{"loss_fn":")" + loss + R"(","data":[]})"));
  };
  pass(1, "cross_entropy");
  EXPECT_EQ(house.num_parsed, 0);
  pass(2, "stable_reinforce");
  EXPECT_EQ(house.num_parsed, 1);
  pass(3, R"(\u0073table_reinforce)");
  EXPECT_EQ(house.num_parsed, 2);
}

// What depends on the model is asked when a body is back from where it was read.
TEST(Operations, ALargeBodyIsReadElsewhereAndAtOnce) {
  House house;
  const std::string session = house.session(), model = house.model(session);
  const std::string blanks(100'000, ' ');
  const std::string pass = R"(,"forward_input":{"loss_fn":"cross_entropy","data":[{"model_input":
      {"chunks":[{"tokens":[1]}]},"loss_fn_inputs":{"target_tokens":{"data":[1],"dtype":"int64"},
      "weights":{"data":[1],"dtype":"float32"}}}]})";
  const Response small = house.post("forward", number(model, 1, pass));
  EXPECT_EQ(house.num_parsed, 0);
  const Response large = house.post("forward", number(model, 2, pass + blanks));
  EXPECT_EQ(house.num_parsed, 1);
  EXPECT_EQ(house.submitted.back().seq_id, 2) << large.body;
  EXPECT_EQ(house.post("forward", number("none", 1, pass + blanks)).status, 404);
  house.post(
      "create_sampling_session",
      R"({"session_id":")" + session + R"(","sampling_session_seq_id":0,"base_model":"tiny"})");
  house.num_parsed = 0;
  const auto sample = [&](int seq_id, int token, const std::string& more) {
    return house.post("asample", R"({"sampling_session_id":")" + session +
                                     R"(:sample:0","seq_id":)" + std::to_string(seq_id) +
                                     R"(,"prompt":{"chunks":[{"tokens":[)" + std::to_string(token) +
                                     R"(]}]},"sampling_params":{)" + more + "}" + blanks + "}");
  };
  EXPECT_EQ(sample(1, 99, "").status, 200);
  EXPECT_EQ(house.num_parsed, 1);
  EXPECT_EQ(std::get<api::Sample>(house.submitted.back().op).max_tokens, 63) << "of 64 positions";
  EXPECT_THAT(sample(2, 100, "").body, HasSubstr("prompt: token 100 is outside 0 to 99"));
  EXPECT_THAT(sample(3, 1, R"("max_tokens":64)").body,
              HasSubstr("sampling_params.max_tokens: Prompt length plus max_tokens exceeds"));
}

TEST(Operations, ACheckpointIsLoadedIntoAModelLikeItsOwnOrANewOne) {
  House house;
  const std::string session = house.session();
  const std::string model = house.model(session);
  const Response saved = house.post("save_weights", number(model, 1, R"(,"path":"a")"));
  house.settle(House::text(saved, "request_id"), api::Saved{api::SavedAs::kState, "d"});
  const std::string path = "tinker://" + model + "/weights/a";
  ASSERT_EQ(House::text(house.poll(House::text(saved, "request_id")), "path"), path);
  house.post("load_weights", number(model, 2, R"(,"path":")" + path + R"(","optimizer":true)"));
  EXPECT_TRUE(std::get<api::LoadState>(house.submitted.back().op).optimizer);
  const Response made =
      house.post("load_weights",
                 R"({"session_id":")" + session + R"(","model_seq_id":1,"path":")" + path + "\"}");
  EXPECT_EQ(House::text(made, "model_id"), session + ":train:1");
  EXPECT_NE(std::get<api::CreateModel>(house.submitted.back().op).load_dir, "");
  // Of a checkpoint that is not there a model's future tells, since its number has been used.
  const Response none = house.post(
      "load_weights", number(model, 3, R"(,"path":"tinker://)" + model + R"(/weights/b")"));
  ASSERT_EQ(none.status, 200) << none.body;
  EXPECT_EQ(House::text(house.poll(House::text(none, "request_id")), "category"), "user");
  // What a database that is away says is no fault of the path, and uses up no number.
  house.faults().away = true;
  const std::string again = number(model, 4, R"(,"path":")" + path + "\"");
  const Response away = house.post("load_weights", again);
  EXPECT_EQ(away.status, 503);
  EXPECT_THAT(away.body, ::testing::Not(HasSubstr("injected")));
  house.faults().away = false;
  EXPECT_NE(House::text(house.post("load_weights", again), "request_id"), "");
  EXPECT_EQ(house.submitted.back().seq_id, 4);
}

TEST(Operations, AnUnloadedModelIsGoneFromItsAcceptance) {
  House house;
  const std::string model = house.model(house.session());
  const std::string body = R"({"model_id":")" + model + "\"}";
  EXPECT_THAT(house.post("get_info", body).body, HasSubstr("\"lora_rank\":8"));
  const Response taken = house.post("unload_model", body);
  EXPECT_EQ(house.submitted.back().seq_id, 0);
  EXPECT_EQ(house.post("get_info", body).status, 404);
  house.settle(House::text(taken, "request_id"), api::Done{});
  EXPECT_THAT(house.poll(House::text(taken, "request_id")).body, HasSubstr("unload_model"));
}

TEST(Operations, ASamplingSessionIsTheSameWhenItIsAskedForAgain) {
  House house;
  const std::string session = house.session();
  const std::string body =
      R"({"session_id":")" + session + R"(","sampling_session_seq_id":4,"base_model":"tiny"})";
  const Response made = house.post("create_sampling_session", body);
  EXPECT_EQ(House::text(made, "sampling_session_id"), session + ":sample:4");
  EXPECT_EQ(house.post("create_sampling_session", body).body, made.body);
  EXPECT_THAT(house.call("GET", "samplers/" + session + ":sample:4").body, HasSubstr("tiny"));
  EXPECT_EQ(house.call("GET", "samplers/" + session + ":sample:4", "", "bob").status, 404);
}

TEST(Operations, WhatAnSdkAsksAtItsStart) {
  House house;
  EXPECT_THAT(house.post("client/config", "{}").body, HasSubstr("\"fwdbwd_max_chunk_len\":1024"));
  EXPECT_THAT(house.post("client/dynamic_config", "").body,
              HasSubstr("\"sample_cancel_enabled\":true"));
  EXPECT_EQ(house.post("telemetry", "whatever").status, 200);
  EXPECT_EQ(house.post("session_heartbeat", R"({"session_id":"none"})").status, 404);
}

}  // namespace
}  // namespace strata::server
