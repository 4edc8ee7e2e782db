// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "server/tinker/operations/asample.h"

namespace strata::server {
namespace {

const api::BaseInfo kBase{.vocab_size = 100, .max_context = 32, .end_tokens = {7}};

SampleOrder read(const std::string& more, const std::string& params) {
  const text::JsonBody body("{\"prompt\":{\"chunks\":[{\"tokens\":[1,2,3]}]}" + more +
                                ",\"sampling_params\":{" + params + "}}",
                            "asample");
  SampleOrder order = read_sample(body.root(), 5);
  resolve_sample(kBase, order);
  return order;
}

TEST(SampleRequest, NullsAndAbsentFieldsAreTheDefaults) {
  const std::string nulls =
      "\"max_tokens\":null,\"temperature\":null,\"top_k\":null,\"top_p\":null,\"seed\":null,"
      "\"stop\":null";
  for (const SampleOrder& order :
       {read("", ""), read(",\"num_samples\":null,\"prompt_logprobs\":null,"
                           "\"topk_prompt_logprobs\":null,\"prompt_logprobs_last_n\":null,"
                           "\"target_prompt_logprobs\":null,\"record_stability_info\":null",
                           nulls)}) {
    EXPECT_EQ(order.command.max_tokens, 29);
    EXPECT_EQ(order.command.temperature, 1.0f);
    EXPECT_EQ(order.command.top_k, 0);
    EXPECT_EQ(order.command.top_p, 1.0f);
    EXPECT_EQ(order.command.seed, 5u);
    EXPECT_EQ(order.command.stop, (std::vector<int32_t>{7}));
    EXPECT_EQ(order.command.num_samples, 1);
    EXPECT_FALSE(order.command.prompt_logprobs);
    EXPECT_FALSE(order.record);
  }
}

TEST(SampleRequest, AnEmptyStopListStopsNothing) {
  EXPECT_TRUE(read("", "\"stop\":[]").command.stop.empty());
  EXPECT_EQ(read("", "\"stop\":[9]").command.stop, (std::vector<int32_t>{9, 7}));
}

TEST(SampleRequest, RefusesByName) {
  const auto message = [](const std::string& more, const std::string& params) -> std::string {
    try {
      read(more, params);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  for (const char* name : {"temperature", "top_p", "top_k", "max_tokens"}) {
    const std::string field = std::string("\"") + name + "\":-3";
    EXPECT_NE(message("", field).find(name), std::string::npos) << message("", field);
  }
  EXPECT_NE(message("", "\"max_tokens\":30").find("context window: 3 + 30 > 32"),
            std::string::npos);
  EXPECT_NE(message(",\"prompt_alt_tokens_k\":-1", "").find("prompt_alt_tokens_k"),
            std::string::npos);
  const auto targets = [&](const std::string& tensor) {
    return message(",\"target_prompt_logprobs\":{" + tensor + "}", "");
  };
  const std::pair<const char*, const char*> faults[] = {
      {R"("dtype":"float32","data":[1],"shape":[1,1])", "dtype: wanted 'int64'"},
      {R"("dtype":"int64","data":[100,1],"shape":[2,1])", "token 100 is outside -1 to"},
      {R"("dtype":"int64","data":[-1,-1],"shape":[2,1])", "names no token"},
      {R"("dtype":"int64","data":[1,2],"shape":[2])", "wanted [2, K]"},
      {R"("dtype":"int64","data":[1],"shape":[1,1])", "wanted [2, K]"},
      {R"("dtype":"int64","data":[1,2,3],"shape":[3,1])", "has 3 rows"},
      {R"("dtype":"int64","data":[1,2,3],"shape":[2,2])", "holds 3 values"},
      {R"("dtype":"int64","data":[1],"shape":[2,9999],"sparse_crow_indices":[0,0,1],
          "sparse_col_indices":[0])",
       "9999 columns"},
      {R"("dtype":"int64","data":[1],"shape":[2,4],"sparse_crow_indices":[0,1],
          "sparse_col_indices":[0])",
       "crow_indices"},
      {R"("dtype":"int64","data":[1,2],"shape":[2,4],"sparse_crow_indices":[0,2,2],
          "sparse_col_indices":[3,3])",
       "twice"},
  };
  for (const auto& [tensor, want] : faults)
    EXPECT_NE(targets(tensor).find(want), std::string::npos) << tensor << "\n" << targets(tensor);
}

TEST(SampleRequest, TargetsKeepTheirLayout) {
  const SampleOrder dense =
      read(R"(,"target_prompt_logprobs":{"dtype":"int64","data":[1,-1,3,4],"shape":[2,2]})", "");
  EXPECT_EQ(dense.command.prompt_targets.ids, (std::vector<int32_t>{1, -1, 3, 4}));
  EXPECT_EQ(dense.command.prompt_targets.first, (std::vector<int64_t>{0, 2, 4}));
  ASSERT_TRUE(dense.targets);
  EXPECT_EQ(dense.targets->shape, (std::vector<int64_t>{2, 2}));
  EXPECT_FALSE(dense.targets->is_sparse);
  const SampleOrder sparse = read(
      R"(,"target_prompt_logprobs":{"dtype":"int64","data":[7,5],"shape":[2,3],
         "sparse_crow_indices":[0,0,2],"sparse_col_indices":[2,0]},"prompt_alt_tokens_k":4)",
      "");
  EXPECT_EQ(sparse.command.prompt_targets.ids, (std::vector<int32_t>{7, 5}));
  EXPECT_EQ(sparse.command.prompt_targets.first, (std::vector<int64_t>{0, 0, 2}));
  ASSERT_TRUE(sparse.targets);
  EXPECT_EQ(sparse.targets->col, (std::vector<int64_t>{2, 0}));
  EXPECT_EQ(sparse.command.prompt_draws, 4);
}

}  // namespace
}  // namespace strata::server
