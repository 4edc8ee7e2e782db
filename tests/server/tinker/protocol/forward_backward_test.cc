// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/protocol/forward_backward.h"

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
using ::testing::HasSubstr;

constexpr DataLimits kLimits = {.elements = 1000, .record_bytes = 1000};

pb::ForwardBackwardRequest request_of(const std::string& loss) {
  pb::ForwardBackwardRequest message;
  message.set_model_id("s:train:0");
  message.set_seq_id(1);
  message.set_loss_fn(loss);
  return message;
}

pb::Datum& add_datum(pb::ForwardBackwardRequest& message, const std::vector<int32_t>& tokens) {
  pb::Datum& datum = *message.add_data();
  datum.add_model_input()->mutable_encoded_text()->set_tokens(packed(tokens));
  return datum;
}

// [1, columns] without a value.
pb::Tensor empty_row(pb::DType dtype, int64_t columns) {
  pb::Tensor tensor;
  tensor.set_dtype(dtype);
  tensor.add_shape(1);
  tensor.add_shape(columns);
  tensor.mutable_sparse_csr()->set_crow_indices(packed(std::vector<int64_t>{0, 0}));
  return tensor;
}

api::ForwardBackward build(const pb::ForwardBackwardRequest& message,
                           const DataLimits& limits = kLimits) {
  const std::string bytes = message.SerializeAsString();
  ForwardBackwardBody body(bytes, DataForm::kBinary);
  return body.build(limits, [](const std::string&) { return std::nullopt; });
}

// model_id (field 1), a string, must be UTF-8.
TEST(ForwardBackwardBody, AStringThatIsNotUtf8IsRefusedAndToldToNobodyElse) {
  const std::string body("\x0A\x04\xFF\xFE\xFD\xFC", 6);
  ::testing::internal::CaptureStderr();
  const std::string error =
      error_of([&] { const ForwardBackwardBody read(body, DataForm::kBinary); });
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(error, "forward_backward: the body is not a ForwardBackwardRequest message");
}

// A row of zeros costs a few bytes on the wire, whatever its length.
TEST(ForwardBackwardBody, LossInputsOfOneRequestShareABudget) {
  const auto message_of = [](int num_data, int64_t columns) {
    pb::ForwardBackwardRequest message = request_of("cross_entropy");
    for (int i = 0; i < num_data; ++i) {
      pb::Datum& datum = add_datum(message, {1});
      (*datum.mutable_loss_fn_inputs())["target_tokens"] = empty_row(pb::DTYPE_INT64, columns);
      (*datum.mutable_loss_fn_inputs())["weights"] = empty_row(pb::DTYPE_FLOAT32, columns);
    }
    return message;
  };
  EXPECT_EQ(build(message_of(5, 100)).data.size(), 5u);
  EXPECT_THAT(error_of([&] { build(message_of(6, 100)); }),
              HasSubstr("datum 5: target_tokens: has 100 elements, 0 are left"));
  EXPECT_THAT(error_of([&] { build(message_of(1, 600)); }),
              HasSubstr("datum 0: weights: has 600 elements, 400 are left"));
  EXPECT_THAT(
      error_of([&] { build(message_of(1, 1025), {.elements = 1 << 30, .record_bytes = 0}); }),
      HasSubstr("datum 0: target_tokens: has 1025 columns, the limit is 1024"));
}

// Scoring keeps less than training, so a longer datum fits it.
TEST(ForwardBackwardBody, ADatumIsNoLongerThanItsModelAllows) {
  const api::BaseInfo base = {.max_context = 100, .longest_datum = 50};
  const auto fault = [&](size_t tokens, bool forward_only) {
    api::ForwardBackward command = {.forward_only = forward_only};
    command.data.resize(2);
    command.data[1].tokens.resize(tokens);
    return find_length_fault(command, base).value_or("");
  };
  EXPECT_EQ(fault(101, true), "datum 1: 101 tokens exceed the model's context window of 100");
  EXPECT_EQ(fault(100, true), "");
  EXPECT_THAT(fault(51, false), HasSubstr("datum 1: has 51 tokens"));
  EXPECT_EQ(fault(50, false), "");
}

}  // namespace
}  // namespace strata::server
