// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/protocol/provenance.h"

#include <gmock/gmock.h>
#include <server/tinker/protocol/tinker.pb.h>

#include <string>
#include <vector>

#include "server/tinker/protocol/tensor.h"
#include "tests/base/temp_dir.h"

namespace strata::server {
namespace {

namespace pb = tinker_public;
using strata::testing::error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kTokens = 60;

// `kTokens` tokens 7, each with a span of its own; the loss inputs are one sampled span.
pb::ForwardBackwardRequest request() {
  pb::ForwardBackwardRequest message;
  message.set_model_id("s:train:0");
  message.set_seq_id(1);
  message.set_loss_fn("stable_reinforce");
  pb::Datum& datum = *message.add_data();
  datum.add_model_input()->mutable_encoded_text()->set_tokens(
      packed(std::vector<int32_t>(kTokens, 7)));
  const auto add = [&](const char* name, pb::DType dtype, std::string bytes) {
    pb::Tensor& tensor = (*datum.mutable_loss_fn_inputs())[name];
    tensor.set_dtype(dtype);
    tensor.set_dense(std::move(bytes));
  };
  add("target_tokens", pb::DTYPE_INT64, packed(std::vector<int64_t>(kTokens, 9)));
  add("logprobs", pb::DTYPE_FLOAT32, packed(std::vector<float>(kTokens, 0.0f)));
  add("advantages", pb::DTYPE_FLOAT32, packed(std::vector<float>(kTokens, 1.0f)));
  for (int i = 0; i < kTokens; ++i) {
    pb::PromptProvenanceSpan& span = *datum.add_model_input_spans()->mutable_prompt_tokens();
    span.set_sequence_id("a");
    span.set_length(1);
  }
  pb::SampledProvenanceSpan& span = *datum.add_loss_fn_input_spans()->mutable_sampled_tokens();
  span.set_sequence_id("b");
  span.set_length(kTokens);
  return message;
}

struct ProvenanceTest : ::testing::Test {
  api::ForwardBackward build(const pb::ForwardBackwardRequest& message,
                             int64_t record_bytes = 1 << 20) {
    const std::string bytes = message.SerializeAsString();
    ForwardBackwardBody body(bytes, DataForm::kBinary);
    return body.build({.elements = 1000, .record_bytes = record_bytes},
                      [this](const std::string& sequence) -> std::optional<SampleRecord> {
                        asked.push_back(sequence);
                        if (sequence != "a" && sequence != "b") return std::nullopt;
                        return SampleRecord{.prompt = {7},
                                            .tokens = std::vector<int32_t>(kTokens, 9),
                                            .logprobs = std::vector<float>(kTokens, -2.0f)};
                      });
  }
  std::vector<std::string> asked;
};

TEST_F(ProvenanceTest, ASequenceIsLookedUpOnceInARequest) {
  pb::ForwardBackwardRequest message = request();
  *message.add_data() = message.data(0);
  const api::ForwardBackward command = build(message);
  EXPECT_THAT(asked, ElementsAre("a", "b"));
  EXPECT_EQ(command.data[1].inputs[api::LossInput::kLogprobs], std::vector<float>(kTokens, -2.0f));
  EXPECT_EQ(command.data[1].inputs[api::LossInput::kRecordedMask],
            std::vector<float>(kTokens, 1.0f));
}

TEST_F(ProvenanceTest, RecordsOfARequestHaveALimit) {
  EXPECT_THAT(error_of([&] { build(request(), 600); }), HasSubstr("take more than --max-body"));
}

TEST_F(ProvenanceTest, SpansAreBoundedByPositionsAndEmptyOnesAreNotLookedUp) {
  pb::ForwardBackwardRequest message = request();
  auto& spans = *message.mutable_data(0)->mutable_model_input_spans();
  spans.Add()->mutable_prompt_tokens()->set_sequence_id("nobody");
  EXPECT_EQ(build(message).data.size(), 1u);
  while (spans.size() <= 4 * kTokens) spans.Add()->mutable_prompt_tokens();
  EXPECT_THAT(error_of([&] { build(message); }),
              HasSubstr("has 241 spans for 60 positions, the limit is 4 a position"));
}

TEST_F(ProvenanceTest, ALongSequenceIdIsRefused) {
  pb::ForwardBackwardRequest message = request();
  message.mutable_data(0)->mutable_model_input_spans(0)->mutable_prompt_tokens()->set_sequence_id(
      std::string(256, 'a'));
  EXPECT_THAT(error_of([&] { build(message); }), HasSubstr("a sequence_id has 256 bytes"));
}

TEST_F(ProvenanceTest, ASpanAtTheEndOfAllNumbersIsRefused) {
  pb::ForwardBackwardRequest message = request();
  message.mutable_data(0)->mutable_loss_fn_input_spans(0)->mutable_sampled_tokens()->set_offset(
      INT64_MAX);
  EXPECT_THAT(error_of([&] { build(message); }),
              HasSubstr("has 60 sampled tokens, a span ends at 9223372036854775867"));
}

}  // namespace
}  // namespace strata::server
