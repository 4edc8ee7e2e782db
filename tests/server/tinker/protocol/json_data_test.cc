// SPDX-License-Identifier: Apache-2.0
// A JSON body is the same command as the binary body of the same content, or is refused by name.
#include "server/tinker/protocol/json_data.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <server/tinker/protocol/tinker.pb.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "server/tinker/protocol/forward_backward.h"
#include "server/tinker/protocol/tensor.h"

namespace strata::server {
namespace {

namespace pb = tinker_public;
using enum api::LossInput;

// 1 + 2^-23, the smallest normal number, and a third: what only exact reading keeps.
const std::vector<float> kFloats = {1.00000011920928955f, 1.17549435e-38f, -0.333333343f};
const char* const kFloatText = "[1.0000001192092896,1.1754943508222875e-38,-0.3333333432674408]";

std::string request(const std::string& input, const std::string& field = "forward_backward_input") {
  return fmt::format(R"({{"model_id":"s:train:0","seq_id":7,"type":"any","{}":{}}})", field, input);
}
std::string one_datum(const std::string& inputs, const std::string& more = "\"cross_entropy\"") {
  return request(
      fmt::format(R"({{"data":[{{"model_input":{{"chunks":[{{"type":"encoded_text","tokens":[4,5]}},
                  {{"tokens":[6]}}]}},"loss_fn_inputs":{{{}}}}}],"loss_fn":{}}})",
                  inputs, more));
}
std::string floats_field(const std::string& name) {
  return fmt::format(R"(,"{}":{{"data":{},"dtype":"float32","shape":[3]}})", name, kFloatText);
}
const char* const kTargets = R"("target_tokens":{"data":[5,6,7],"dtype":"int64"})";

api::ForwardBackward build(const std::string& bytes, DataForm form) {
  ForwardBackwardBody body(bytes, form);
  EXPECT_EQ(body.model_id(), "s:train:0");
  EXPECT_EQ(body.seq_id(), 7);
  return body.build({.elements = 1000, .record_bytes = 0},
                    [](const std::string&) { return std::nullopt; });
}

std::string message_of(const std::string& text, DataForm form = DataForm::kJson) {
  try {
    ForwardBackwardBody body(text, form);
    (void)body.build({.elements = 1000, .record_bytes = 0},
                     [](const std::string&) { return std::nullopt; });
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(JsonData, IsTheCommandOfTheBinaryBodyForEveryLoss) {
  struct Case {
    std::string loss;
    std::vector<std::string> inputs;
    std::string option;
  };
  const std::vector<Case> cases = {
      {"cross_entropy", {"weights"}, ""},
      {"importance_sampling", {"logprobs", "advantages"}, ""},
      {"ppo", {"logprobs", "advantages"}, "clip_low_threshold"},
      {"cispo", {"logprobs", "advantages"}, "clip_high_threshold"},
      {"dro", {"logprobs", "advantages"}, "beta"},
      {"gspo", {"logprobs", "advantages", "sequence_ratio_mask"}, ""},
  };
  for (const Case& c : cases) {
    pb::ForwardBackwardRequest message;
    message.set_model_id("s:train:0");
    message.set_seq_id(7);
    message.set_loss_fn(c.loss);
    pb::Datum& datum = *message.add_data();
    datum.add_model_input()->mutable_encoded_text()->set_tokens(
        packed(std::vector<int32_t>{4, 5, 6}));
    pb::Tensor& targets = (*datum.mutable_loss_fn_inputs())["target_tokens"];
    targets.set_dtype(pb::DTYPE_INT64);
    targets.set_dense(packed(std::vector<int64_t>{5, 6, 7}));
    std::string inputs = kTargets;
    for (const std::string& name : c.inputs) {
      inputs += floats_field(name);
      pb::Tensor& tensor = (*datum.mutable_loss_fn_inputs())[name];
      tensor.set_dtype(pb::DTYPE_FLOAT32);
      tensor.set_dense(packed(kFloats));
    }
    std::string more = fmt::format("\"{}\"", c.loss);
    if (!c.option.empty()) {
      (*message.mutable_loss_fn_config())[c.option] = 1.05;
      more += fmt::format(R"(,"loss_fn_config":{{"{}":1.05}})", c.option);
    }
    const auto binary = build(message.SerializeAsString(), DataForm::kBinary);
    const auto json = build(one_datum(inputs, more), DataForm::kJson);
    EXPECT_EQ(fingerprint_of(json), fingerprint_of(binary)) << c.loss;
    EXPECT_EQ(json.data[0].tokens, (std::vector<int32_t>{4, 5, 6}));
    EXPECT_EQ(json.data[0].targets, (std::vector<int32_t>{5, 6, 7}));
    EXPECT_EQ(json.data[0].inputs[c.inputs.size() == 1 ? kWeights : kAdvantages], kFloats);
  }
}

TEST(JsonData, CsrIsItsDenseForm) {
  const std::string dense = R"("target_tokens":{"data":[5,9,6,0,7,0],"dtype":"int64","shape":[3,2]},
      "weights":{"data":[0.5,0.25,1,0,-2,0],"dtype":"float32","shape":[3,2]})";
  const std::string sparse = R"("target_tokens":{"data":[5,9,6,7],"dtype":"int64","shape":[3,2],
      "sparse_crow_indices":[0,2,3,4],"sparse_col_indices":[0,1,0,0]},
      "weights":{"data":[0.5,0.25,1,-2],"dtype":"float32","shape":[3,2],
      "sparse_crow_indices":[0,2,3,4],"sparse_col_indices":[0,1,0,0]})";
  const auto one = build(one_datum(dense), DataForm::kJson);
  const auto two = build(one_datum(sparse), DataForm::kJson);
  EXPECT_EQ(one.data[0].num_targets, 2);
  EXPECT_EQ(one.data[0].inputs[kWeights],
            (std::vector<float>{0.5f, 0.25f, 1.0f, 0.0f, -2.0f, 0.0f}));
  EXPECT_EQ(fingerprint_of(one), fingerprint_of(two));
}

TEST(JsonData, NullsAndUnknownFieldsAreAsAbsent) {
  const std::string plain = one_datum(kTargets + floats_field("weights"));
  const std::string nulls = one_datum(
      kTargets + fmt::format(R"(,"weights":{{"data":{},"dtype":"float32","shape":null,"later":[1],
                      "sparse_crow_indices":null,"sparse_col_indices":null}},"mask":null)",
                             kFloatText),
      R"("cross_entropy","loss_fn_config":null,"later":{})");
  EXPECT_EQ(fingerprint_of(build(nulls, DataForm::kJson)),
            fingerprint_of(build(plain, DataForm::kJson)));
}

TEST(JsonData, ForwardHasItsOwnField) {
  std::string text = one_datum(kTargets + floats_field("weights"));
  EXPECT_FALSE(build(text, DataForm::kJson).forward_only);
  EXPECT_NE(message_of(text, DataForm::kJsonForward).find("forward: forward_input: this field is "),
            std::string::npos);
  text.replace(text.find("forward_backward_input"), 22, "forward_input");
  EXPECT_TRUE(build(text, DataForm::kJsonForward).forward_only);
}

TEST(JsonData, WhatCannotBeParsedIsRefusedAtOnce) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "forward_backward: model_id: this field is required"},
      {"{]", "forward_backward: the body is not JSON: "},
      {R"({"model_id":"m","seq_id":NaN})", "forward_backward: the body is not JSON: "},
      {"[]", "forward_backward: the body is not a JSON object"},
      {R"({"model_id":5,"seq_id":1})", "model_id: wanted a string, got 5"},
      {R"({"model_id":"m"})", "seq_id: this field is required"},
      {R"({"model_id":"m","seq_id":1.5})", "seq_id: wanted an integer, got 1.5"},
      {R"({"model_id":"m","seq_id":9223372036854775807})", "seq_id: got 9223372036854775807, wan"},
  };
  for (const auto& [text, wanted] : cases) {
    try {
      const ForwardBackwardBody body(text, DataForm::kJson);
      ADD_FAILURE() << text << " was accepted";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(wanted), std::string::npos)
          << text << ": " << error.what();
    }
  }
}

TEST(JsonData, FaultsOfTheDataAreNamed) {
  const auto tensor = [](const std::string& fields) {
    return message_of(one_datum(fmt::format(R"({},"weights":{{{}}})", kTargets, fields)));
  };
  const auto data = [](const std::string& text) {
    return message_of(request(fmt::format(R"({{"data":{},"loss_fn":"cross_entropy"}})", text)));
  };
  const auto chunk = [&](const std::string& text) {
    return data(
        fmt::format(R"([{{"model_input":{{"chunks":[{}]}},"loss_fn_inputs":{{}}}}])", text));
  };
  const auto options = [](const std::string& config) {
    return message_of(one_datum(kTargets + floats_field("logprobs") + floats_field("advantages"),
                                R"("ppo","loss_fn_config":)" + config));
  };
  const std::string at = "forward_backward: forward_backward_input.data[0].";
  const std::string in = at + "loss_fn_inputs.weights.";
  const std::string three = R"("data":[1,1,1],"dtype":"float32")";
  const std::string csr = R"("data":[1],"dtype":"float32","shape":[3,2],)";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {message_of(request("[]")),
       "forward_backward: forward_backward_input: wanted an object, got an array"},
      {message_of(R"({"model_id":"m","seq_id":1,"forward_only":true,"forward_backward_input":{}})"),
       "forward_backward: forward_only: JSON bodies ask for it by POST forward"},
      {message_of(request(R"({"data":[]})")),
       "forward_backward: forward_backward_input.loss_fn: this field is required"},
      {message_of(request(R"({"data":[],"loss_fn":"exec"})")), "forward_backward: unknown loss_fn"},
      {data("[]"), "forward_backward: the list of data is empty"},
      {data("{}"), "forward_backward_input.data: wanted an array, got an object"},
      {data("[5]"), "forward_backward_input.data: item 0: wanted an object, got 5"},
      {data("[{}]"), at + "model_input: this field is required"},
      {data(R"([{"loss_fn_input_spans":[]}])"),
       at + "loss_fn_input_spans: is read from application/x-protobuf bodies only"},
      {chunk(""), "datum 0: model_input is empty"},
      {chunk(R"({"type":"image","data":"eA==","format":"png"})"),
       at + "model_input.chunks[0].type: 'image' chunks are not supported"},
      {chunk(R"({"tokens":[1,2147483648]})"),
       "chunks[0].tokens: token 2147483648 is outside -2147483648 to 2147483647"},
      {chunk(R"({"tokens":[1,[2]]})"), "tokens: item 1: wanted an integer, got an array"},
      {chunk(R"({"tokens":[18446744073709551615]})"),
       "tokens: item 0: wanted an integer, got 18446744073709551615"},
      {message_of(one_datum(kTargets)), "datum 0: loss_fn_inputs lacks 'weights'"},
      {message_of(one_datum(kTargets + floats_field("weights") + floats_field("mask"))),
       "datum 0: loss_fn_inputs has 'mask', which cross_entropy does not read"},
      {message_of(one_datum(R"("target_tokens":{"data":[5,6,4294967296],"dtype":"int64"})" +
                            floats_field("weights"))),
       "datum 0: target_tokens: value 4294967296 is no id"},
      {message_of(one_datum(R"("target_tokens":{"data":[5,6.0,7],"dtype":"int64"})")),
       "target_tokens.data: item 1: wanted an integer, got 6.0"},
      {message_of(one_datum(R"("target_tokens":{"data":[5,9e99,7],"dtype":"int64"})")),
       "target_tokens.data: item 1: wanted an integer, got 9e+99"},
      {tensor(R"("dtype":"float32")"), in + "data: this field is required"},
      {tensor(R"("data":[1,1,1])"), in + "dtype: this field is required"},
      {tensor(R"("data":[1,1,1],"dtype":"bfloat16")"),
       in + "dtype: got 'bfloat16', wanted 'int64' or 'float32'"},
      {tensor(R"("data":[1,1,1],"dtype":"int64")"),
       "datum 0: weights: dtype is int64, wanted float32"},
      {tensor(R"("data":[1,null,1],"dtype":"float32")"),
       in + "data: item 1: wanted a finite number of 32 bits, got null"},
      {tensor(R"("data":[1,1e400,1],"dtype":"float32")"), "item 1: wanted a finite number of 32"},
      {tensor(R"("data":[1,-1e39,1],"dtype":"float32")"), "of 32 bits, got -1e+39"},
      {tensor(R"("data":[1,"1",1],"dtype":"float32")"), "of 32 bits, got a string"},
      {tensor(R"("data":"AAAA","dtype":"float32")"), "wanted an array of numbers, got a string"},
      {tensor(R"("data":[1,1],"dtype":"float32")"),
       "datum 0: weights: has shape (2,), target_tokens has (3,)"},
      {tensor(three + R"(,"shape":[4])"), "datum 0: weights: holds 3 values, its shape wants 4"},
      {tensor(three + R"(,"shape":[3.0])"), in + "shape: item 0: wanted an integer, got 3.0"},
      {tensor(three + R"(,"shape":[-3])"), "datum 0: weights: a dimension is -3"},
      {tensor(three + R"(,"shape":[1099511627776,1099511627776])"),
       "datum 0: weights: a dimension is 1099511627776"},
      {tensor(three + R"(,"shape":[1,1,3])"), "datum 0: weights: has 3 dimensions, wanted one or"},
      {tensor(csr + R"("sparse_crow_indices":[0,1,1,1])"),
       in + "sparse_col_indices: this field is required"},
      {tensor(csr + R"("sparse_col_indices":[0])"),
       in + "sparse_crow_indices: this field is required"},
      {tensor(csr + R"("sparse_crow_indices":[0,1],"sparse_col_indices":[0])"),
       "datum 0: weights: CSR crow_indices has 2 entries, wanted rows + 1 = 4"},
      {tensor(csr + R"("sparse_crow_indices":[0,1,0,1],"sparse_col_indices":[0])"),
       "datum 0: weights: CSR crow_indices decreases after row 1"},
      {tensor(csr + R"("sparse_crow_indices":[0,1,1,1],"sparse_col_indices":[2])"),
       "datum 0: weights: CSR column 2 of row 0 is outside 0 to 1"},
      {options(R"({"clip_low_threshold":"0.9"})"),
       "forward_backward: loss_fn_config: clip_low_threshold is not a number"},
      {options(R"({"clip_low_threshold":1e999})"),
       "loss_fn_config.clip_low_threshold: wanted a finite number, got inf"},
      {options(R"({"clip_low_threshold":1e300})"),
       "forward_backward: loss_fn_config: clip_low_threshold is not finite"},
      {options(R"({"beta":1})"), "forward_backward: loss_fn_config: ppo has no option 'beta'"},
      {options("[]"), "forward_backward_input.loss_fn_config: wanted an object, got an array"},
  };
  for (const auto& [message, wanted] : cases) {
    EXPECT_NE(message.find(wanted), std::string::npos)
        << "got: " << message << "\nwanted: " << wanted;
  }
}

}  // namespace
}  // namespace strata::server
