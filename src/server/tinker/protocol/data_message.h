// SPDX-License-Identifier: Apache-2.0
// What a ForwardBackwardRequest says (tinker.proto), with views for all that may be long: the
// arrays of a datum are copied once, into what a command holds. Which messages are read and what
// they mean is as the protobuf library has it, which the tests ask; but it parses into copies.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace strata::server {

// The values of an array's bytes, which are little-endian, without gaps, and begin anywhere.
template <typename T>
class PackedValues {
 public:
  // The bytes are a multiple of sizeof(T).
  explicit PackedValues(std::string_view bytes) : bytes_(bytes) {}
  [[nodiscard]] size_t size() const { return bytes_.size() / sizeof(T); }
  [[nodiscard]] T operator[](size_t i) const {
    T value;
    bytes_.copy(reinterpret_cast<char*>(&value), sizeof(T), i * sizeof(T));
    return value;
  }

 private:
  std::string_view bytes_;
};

struct TensorMessage {
  enum class Form : uint8_t { kNone, kDense, kSparse };
  Form form = Form::kNone;
  int32_t dtype = 0;           // tinker_public::DType
  std::string_view values;     // of its dtype
  std::string_view crow, col;  // int64; of a sparse one
  std::vector<int64_t> shape;  // empty: flat
};

struct ChunkMessage {
  enum class Kind : uint8_t { kNone, kText, kImage, kDmel };  // by the number of the field
  Kind kind = Kind::kNone;
  std::string_view tokens = {};  // int32; of a text
};

// [offset, offset + length) of a sequence's prompt or of its sampled tokens.
struct SpanMessage {
  enum class Kind : uint8_t { kNone, kPrompt, kSampled };
  Kind kind = Kind::kNone;
  std::string_view sequence_id = {};
  int64_t offset = 0;
  int64_t length = 0;
};

struct DatumMessage {
  std::vector<ChunkMessage> model_input;
  std::map<std::string_view, TensorMessage> inputs;  // of the loss
  std::vector<SpanMessage> model_input_spans, loss_input_spans;
};

// Borrows the bytes that it was read from, but for what is in `own`.
struct DataMessage {
  std::string_view model_id, loss_fn;
  int64_t seq_id = 0;
  bool forward_only = false;
  std::vector<DatumMessage> data;
  std::map<std::string_view, double> config;
  std::map<std::string_view, std::optional<double>> config_v2;  // without one: no number
  std::deque<std::string> own;

  std::string_view keep(std::string bytes) { return own.emplace_back(std::move(bytes)); }
};

constexpr int64_t kMaxData = 16384;     // of one request
constexpr int64_t kMaxParts = 1 << 20;  // chunks, spans, loss inputs, dimensions, options, together

// A look over the bytes before they are read: an empty message takes two bytes on the wire and a
// hundred when read, so their number is bounded first. Allocates nothing.
struct DataScan {
  std::string_view model_id;  // borrowed from the bytes
  int64_t seq_id = 0;
  int64_t num_parts = 0;
  std::optional<std::string> fault;  // what there is too much of; then the message must not be read
};
// What is no such message is left to who reads it.
DataScan scan_data(std::string_view bytes);
// Throws Error for more than kMaxData.
void check_num_data(int64_t count);

// False for what is no such message. How many parts it has is bounded before, by scan_data().
bool read_data_message(std::string_view bytes, DataMessage& out);

}  // namespace strata::server
