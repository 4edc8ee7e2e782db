// SPDX-License-Identifier: Apache-2.0
// ForwardBackwardRequests as views beside the protobuf library's own parser: whole ones, and such
// as no client sends.
#include "server/tinker/protocol/data_message.h"

#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "server/tinker/protocol/tensor.h"
#include "tests/server/tinker/protocol/data_message_check.h"

namespace strata::server {
namespace {

using testing::agrees_with_protobuf;
namespace pb = tinker_public;

class DataMessages : public ::testing::Test {
 protected:
  DataMessages() { google::protobuf::SetLogHandler(nullptr); }

  int64_t draw(int64_t below) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(below));
  }
  std::string bytes(int64_t most) {
    std::string out(static_cast<size_t>(draw(most + 1)), '\0');
    for (char& c : out) c = static_cast<char>(draw(256));
    return out;
  }
  std::string name() {
    static constexpr const char* kNames[] = {"", "target_tokens", "weights", "\xc3\xa9", "a"};
    return kNames[draw(5)];
  }
  int64_t number() { return draw(2) == 0 ? draw(300) : static_cast<int64_t>(random_()); }

  void fill(pb::Tensor& tensor) {
    if (draw(3) != 0) tensor.set_dense(bytes(40));
    if (draw(3) == 0) {
      tensor.mutable_sparse_csr()->set_values(bytes(20));
      if (draw(2) == 0) tensor.mutable_sparse_csr()->set_crow_indices(bytes(20));
      if (draw(2) == 0) tensor.mutable_sparse_csr()->set_col_indices(bytes(20));
    }
    if (draw(4) != 0) tensor.set_dtype(static_cast<pb::DType>(draw(7)));
    for (int64_t i = draw(4); i > 0; --i) tensor.add_shape(number());
  }
  void fill(pb::ProvenanceSpan& span) {
    const auto fill_part = [&](auto& part) {
      part.set_sequence_id(name());
      part.set_offset(number());
      part.set_length(number());
    };
    if (draw(3) == 0) fill_part(*span.mutable_prompt_tokens());
    if (draw(3) == 0) fill_part(*span.mutable_sampled_tokens());
  }
  void fill(pb::Chunk& chunk) {
    const int64_t kind = draw(12);
    if (kind == 0) {
      chunk.mutable_dmel()->set_dmel(bytes(9));
    } else if (kind == 1) {
      chunk.mutable_image()->set_data(bytes(9));
      chunk.mutable_image()->mutable_override_dimensions()->set_width(3);
    } else if (kind != 2) {
      chunk.mutable_encoded_text()->set_tokens(bytes(40));
    }
  }
  pb::ForwardBackwardRequest message() {
    pb::ForwardBackwardRequest out;
    if (draw(4) != 0) out.set_model_id(name());
    if (draw(4) != 0) out.set_seq_id(static_cast<int32_t>(number()));
    if (draw(4) != 0) out.set_loss_fn(name());
    if (draw(2) == 0) out.set_forward_only(true);
    for (int64_t i = draw(3); i > 0; --i)
      (*out.mutable_loss_fn_config())[name()] = std::bit_cast<double>(random_());
    for (int64_t i = draw(4); i > 0; --i) {
      pb::LossConfigValue& value = (*out.mutable_loss_fn_config_v2())[name()];
      if (draw(3) != 0) value.set_number(0.25);
      if (draw(3) == 0) value.set_text(name());
    }
    for (int64_t i = draw(4); i > 0; --i) {
      pb::Datum& datum = *out.add_data();
      for (int64_t c = draw(3); c > 0; --c) fill(*datum.add_model_input());
      for (int64_t c = draw(4); c > 0; --c) fill((*datum.mutable_loss_fn_inputs())[name()]);
      for (int64_t c = draw(3); c > 0; --c) fill(*datum.add_model_input_spans());
      for (int64_t c = draw(3); c > 0; --c) fill(*datum.add_loss_fn_input_spans());
    }
    return out;
  }
  // A byte changed, taken out or put in; a piece said twice; the end cut off.
  void spoil(std::string& text) {
    if (text.empty()) return;
    const auto at = static_cast<size_t>(draw(std::ssize(text)));
    switch (draw(6)) {
      case 0:
        text[at] = static_cast<char>(draw(256));
        break;
      case 1:
        text.erase(at, 1);
        break;
      case 2:
        text.insert(at, 1, static_cast<char>(draw(256)));
        break;
      case 3:
        text.insert(at, text.substr(at, static_cast<size_t>(draw(20))));
        break;
      case 4:
        text.resize(at);
        break;
      default:
        text[at] = static_cast<char>(text[at] ^ (1 << draw(8)));
    }
  }

  std::mt19937_64 random_{20261123};
};

TEST_F(DataMessages, WholeOnesAreReadAsTheLibraryReadsThem) {
  for (int i = 0; i < 3000; ++i) {
    const std::string text = message().SerializeAsString();
    DataMessage read;
    ASSERT_TRUE(read_data_message(text, read)) << i;
    ASSERT_TRUE(agrees_with_protobuf(text)) << i;
  }
}

// One after the other they are one message: fields that come twice, oneofs that change their kind.
TEST_F(DataMessages, OnesInPiecesAreMerged) {
  for (int i = 0; i < 3000; ++i) {
    ASSERT_TRUE(agrees_with_protobuf(message().SerializeAsString() + message().SerializeAsString()))
        << i;
  }
}

TEST_F(DataMessages, SpoiltOnesAreRefusedOrReadAsTheLibraryDoes) {
  int64_t num_read = 0;
  constexpr int kRuns = 60000;
  for (int i = 0; i < kRuns; ++i) {
    std::string text = message().SerializeAsString();
    for (int64_t n = draw(4); n >= 0; --n) spoil(text);
    ASSERT_TRUE(agrees_with_protobuf(text)) << i << ' ' << ::testing::PrintToString(text);
    DataMessage read;
    num_read += read_data_message(text, read) ? 1 : 0;
  }
  EXPECT_GT(num_read, kRuns / 20);
  EXPECT_LT(num_read, kRuns / 2);
}

std::string hex(std::string_view digits) {
  std::string out;
  for (size_t i = 0; i + 1 < digits.size(); i += 2)
    out += static_cast<char>(std::stoi(std::string(digits.substr(i, 2)), nullptr, 16));
  return out;
}

TEST_F(DataMessages, WhatNoClientSends) {
  for (const char* digits : {
           "",    // nothing
           "00",  // the number 0
           "0a0161"
           "0a0162",                    // model_id twice
           "10ffffffffffffffffff01",    // seq_id -1
           "10ffffffffffffffffffff01",  // eleven bytes
           "108080808000",              // longer than it need be
           "1a80808080800000",          // a length of six bytes
           "1affffffff0f",              // a length beyond 2^31
           "0d00000000",
           "0d000000",      // an unknown type of a known number
           "9a0603616263",  // an unknown field
           "0b0c",
           "0b13140c",
           "0b0d",
           "0c",
           "0b0b0c0c",
           "0b0a01610c",  // groups
           "1a04"
           "22020a00"
           "1a02"
           "2200",  // spans
           "1a08"
           "1206"
           "1204"
           "20012003",  // dimensions, one at a time
           "1a08"
           "1206"
           "1204"
           "22020103",  // and packed
           "1a08"
           "1206"
           "1204"
           "220201ff",  // and cut off
           "2a0b"
           "0a0161"
           "0000000000",  // an entry with a number of 0
           "2a0c"
           "0a0161"
           "11000000000000f03f",  // an entry that is whole
           "30ff01",              // a truth that is 255
           "1a09"
           "0a07"
           "12031201ff"
           "0a00",  // an image whose format is no text, then a text
           "1a0a"
           "0a08"
           "12042202ff01"
           "0a00",  // one whose dimensions are no message
       }) {
    EXPECT_TRUE(agrees_with_protobuf(hex(digits))) << digits;
  }
}

// What is long stays where it is.
TEST_F(DataMessages, ArraysAreViewsOfTheBytes) {
  pb::ForwardBackwardRequest message;
  pb::Datum& datum = *message.add_data();
  datum.add_model_input()->mutable_encoded_text()->set_tokens(packed(std::vector<int32_t>{7, 8}));
  (*datum.mutable_loss_fn_inputs())["weights"].set_dense(packed(std::vector<float>{1.5f}));
  const std::string text = message.SerializeAsString();
  DataMessage read;
  ASSERT_TRUE(read_data_message(text, read));
  for (const std::string_view view :
       {read.data[0].model_input[0].tokens, read.data[0].inputs.at("weights").values}) {
    EXPECT_GE(view.data(), text.data());
    EXPECT_LE(view.data() + view.size(), text.data() + text.size());
  }
  EXPECT_EQ(PackedValues<int32_t>(read.data[0].model_input[0].tokens)[1], 8);
}

}  // namespace
}  // namespace strata::server
