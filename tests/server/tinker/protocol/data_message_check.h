// SPDX-License-Identifier: Apache-2.0
// What read_data_message made of bytes beside what the protobuf library parses out of them.
#pragma once
#include <server/tinker/protocol/tinker.pb.h>

#include <bit>
#include <string>
#include <string_view>

#include "server/tinker/protocol/data_message.h"

namespace strata::server::testing {

namespace pb = tinker_public;

inline bool same(const TensorMessage& ours, const pb::Tensor& theirs) {
  using Form = TensorMessage::Form;
  if (ours.dtype != static_cast<int32_t>(theirs.dtype())) return false;
  if (!std::equal(ours.shape.begin(), ours.shape.end(), theirs.shape().begin(),
                  theirs.shape().end()))
    return false;
  switch (ours.form) {
    case Form::kNone:
      return theirs.encoding_case() == pb::Tensor::ENCODING_NOT_SET;
    case Form::kDense:
      return theirs.has_dense() && ours.values == theirs.dense();
    case Form::kSparse:
      return theirs.has_sparse_csr() && ours.values == theirs.sparse_csr().values() &&
             ours.crow == theirs.sparse_csr().crow_indices() &&
             ours.col == theirs.sparse_csr().col_indices();
  }
  return false;
}

inline bool same(const ChunkMessage& ours, const pb::Chunk& theirs) {
  switch (theirs.chunk_case()) {
    case pb::Chunk::kEncodedText:
      return ours.kind == ChunkMessage::Kind::kText &&
             ours.tokens == theirs.encoded_text().tokens();
    case pb::Chunk::kImage:
      return ours.kind == ChunkMessage::Kind::kImage;
    case pb::Chunk::kDmel:
      return ours.kind == ChunkMessage::Kind::kDmel;
    case pb::Chunk::CHUNK_NOT_SET:
      return ours.kind == ChunkMessage::Kind::kNone;
  }
  return false;
}

template <typename Part>
bool same_part(const SpanMessage& ours, const Part& theirs) {
  return ours.sequence_id == theirs.sequence_id() && ours.offset == theirs.offset() &&
         ours.length == theirs.length();
}

inline bool same(const SpanMessage& ours, const pb::ProvenanceSpan& theirs) {
  switch (ours.kind) {
    case SpanMessage::Kind::kNone:
      return theirs.span_case() == pb::ProvenanceSpan::SPAN_NOT_SET;
    case SpanMessage::Kind::kPrompt:
      return theirs.has_prompt_tokens() && same_part(ours, theirs.prompt_tokens());
    case SpanMessage::Kind::kSampled:
      return theirs.has_sampled_tokens() && same_part(ours, theirs.sampled_tokens());
  }
  return false;
}

inline bool same(const DatumMessage& ours, const pb::Datum& theirs);

template <typename Ours, typename Theirs>
bool same_list(const Ours& ours, const Theirs& theirs) {
  return std::equal(ours.begin(), ours.end(), theirs.begin(), theirs.end(),
                    [](const auto& a, const auto& b) { return same(a, b); });
}

inline bool same(const DatumMessage& ours, const pb::Datum& theirs) {
  if (ours.inputs.size() != theirs.loss_fn_inputs().size()) return false;
  for (const auto& [name, tensor] : ours.inputs) {
    const auto found = theirs.loss_fn_inputs().find(std::string(name));
    if (found == theirs.loss_fn_inputs().end() || !same(tensor, found->second)) return false;
  }
  return same_list(ours.model_input, theirs.model_input()) &&
         same_list(ours.model_input_spans, theirs.model_input_spans()) &&
         same_list(ours.loss_input_spans, theirs.loss_fn_input_spans());
}

// By their bits: an option may be NaN.
inline bool same(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

inline bool same(const DataMessage& ours, const pb::ForwardBackwardRequest& theirs) {
  if (ours.model_id != theirs.model_id() || ours.loss_fn != theirs.loss_fn() ||
      ours.seq_id != theirs.seq_id() || ours.forward_only != theirs.forward_only() ||
      ours.config.size() != theirs.loss_fn_config().size() ||
      ours.config_v2.size() != theirs.loss_fn_config_v2().size())
    return false;
  for (const auto& [name, value] : ours.config) {
    const auto found = theirs.loss_fn_config().find(std::string(name));
    if (found == theirs.loss_fn_config().end() || !same(value, found->second)) return false;
  }
  for (const auto& [name, value] : ours.config_v2) {
    const auto found = theirs.loss_fn_config_v2().find(std::string(name));
    if (found == theirs.loss_fn_config_v2().end()) return false;
    const pb::LossConfigValue& other = found->second;
    const bool is_number = other.value_case() == pb::LossConfigValue::kNumber;
    if (value.has_value() != is_number || (value && !same(*value, other.number()))) return false;
  }
  return same_list(ours.data, theirs.data());
}

// Both refuse, or both read the same.
inline bool agrees_with_protobuf(std::string_view bytes) {
  DataMessage ours;
  pb::ForwardBackwardRequest theirs;
  const bool is_read = read_data_message(bytes, ours);
  if (theirs.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return is_read && same(ours, theirs);
  }
  return !is_read;
}

}  // namespace strata::server::testing
