// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/protocol/results.h"

#include <fmt/format.h>
#include <server/tinker/protocol/tinker.pb.h>

#include <cmath>
#include <memory>

#include "server/http/message.h"
#include "server/tinker/protocol/tensor.h"

namespace strata::server {
namespace {

namespace pb = tinker_public;

Response proto_response(const google::protobuf::MessageLite& message) {
  Response response;
  response.content_type = "application/x-protobuf";
  response.body = message.SerializeAsString();
  return response;
}

Json float_array_json(const std::vector<float>& values) {
  std::string text = "[";
  for (const float value : values) {
    if (text.size() > 1) text += ',';
    // As a double, so that a reader of doubles has the very number.
    text += Json(static_cast<double>(value)).text();
  }
  return Json::written(std::move(text) + "]");
}

size_t bytes_of(const api::ForwardBackwardResult& result) {
  size_t bytes = 0;
  for (const api::DatumResult& datum : result.data)
    bytes += sizeof datum + datum.logprobs.size() * sizeof(float);
  return bytes;
}

// A datum's logprobs as TensorData.
Json logprobs_tensor_json(const api::DatumResult& datum) {
  JsonArray shape;
  const int64_t size = std::ssize(datum.logprobs), columns = datum.num_targets;
  shape.add(columns > 0 ? size / columns : size);
  if (columns > 0) shape.add(columns);
  return JsonObject{
      {"data", float_array_json(datum.logprobs)}, {"dtype", "float32"}, {"shape", shape}};
}

// Behind the last datum, from `first` on, that has the trailing shape of the first.
size_t end_of_same_shape(const api::ForwardBackwardResult& result, size_t first) {
  size_t last = first + 1;
  while (last < result.data.size() &&
         result.data[last].num_targets == result.data[first].num_targets) {
    ++last;
  }
  return last;
}

// Data [first, last), all with the same trailing shape.
void add_array_record(const api::ForwardBackwardResult& result, size_t first, size_t last,
                      pb::ForwardBackwardOutput& out) {
  pb::ArrayRecord& record = *out.add_loss_fn_outputs();
  record.set_type_tag("ArrayRecord");
  record.set_num_datums(static_cast<int64_t>(last - first));
  pb::BatchedTensor& tensor = (*record.mutable_fields())["logprobs"];
  tensor.set_dtype(pb::DTYPE_FLOAT32);
  if (result.data[first].num_targets > 0) tensor.add_trailing_shape(result.data[first].num_targets);
  std::vector<int64_t> offsets = {0};
  for (size_t i = first; i < last; ++i) {
    *tensor.mutable_data() += packed(result.data[i].logprobs);
    offsets.push_back(static_cast<int64_t>(tensor.data().size()));
  }
  tensor.set_offsets(packed(offsets));
}

void fill_topk(const api::TopkTable& table, pb::TopkLogprobs& out) {
  out.set_token_ids(packed(table.ids));
  out.set_logprobs(packed(table.logprobs));
  out.set_k(static_cast<uint32_t>(table.k));
  out.set_length(static_cast<uint32_t>(table.k > 0 ? table.ids.size() / table.k : 0));
}

void fill_sequence(const api::SampledSequence& sequence, pb::SampledSequence& out) {
  out.set_stop_reason(sequence.stopped ? pb::STOP_REASON_STOP : pb::STOP_REASON_LENGTH);
  out.set_tokens(packed(sequence.tokens));
  out.set_logprobs(packed(sequence.logprobs));
  if (sequence.topk.k > 0) fill_topk(sequence.topk, *out.mutable_topk_sampled_logprobs());
}

// The values in the layout that they were asked in.
void fill_targets(const std::vector<float>& values, const TensorParts& layout, pb::Tensor& out) {
  out.set_dtype(pb::DTYPE_FLOAT32);
  for (const int64_t dim : layout.shape) out.add_shape(dim);
  if (!layout.is_sparse) {
    out.set_dense(packed(values));
    return;
  }
  pb::SparseCsr& csr = *out.mutable_sparse_csr();
  csr.set_values(packed(values));
  csr.set_crow_indices(packed(layout.crow));
  csr.set_col_indices(packed(layout.col));
}

void fill_draws(const api::TopkTable& draws, pb::PromptAltTokens& out) {
  const int64_t rows = std::ssize(draws.ids) / draws.k;
  for (pb::Tensor* tensor : {out.mutable_tokens(), out.mutable_logprobs()}) {
    tensor->add_shape(rows);
    tensor->add_shape(draws.k);
  }
  out.mutable_tokens()->set_dtype(pb::DTYPE_INT32);
  out.mutable_tokens()->set_dense(packed(draws.ids));
  out.mutable_logprobs()->set_dtype(pb::DTYPE_FLOAT32);
  out.mutable_logprobs()->set_dense(packed(draws.logprobs));
}

}  // namespace

Response forward_backward_response(const api::ForwardBackwardResult& result) {
  pb::ForwardBackwardOutput out;
  out.set_loss_fn_output_type("ArrayRecord");
  for (size_t first = 0; first < result.data.size();) {
    const size_t last = end_of_same_shape(result, first);
    add_array_record(result, first, last, out);
    first = last;
  }
  for (const auto& [name, value] : result.metrics) (*out.mutable_metrics())[name] = value;
  return proto_response(out);
}

Response forward_backward_json_response(const api::ForwardBackwardResult& result) {
  JsonArray outputs;
  for (const api::DatumResult& datum : result.data)
    outputs.add(JsonObject{{"logprobs", logprobs_tensor_json(datum)}});
  JsonObject metrics;
  for (const auto& [name, value] : result.metrics) {
    if (std::isfinite(value)) metrics.add(name, value);
  }
  return json_response(200, JsonObject{{"loss_fn_output_type", "ArrayRecord"},
                                       {"loss_fn_outputs", outputs},
                                       {"metrics", metrics}}
                                .text());
}

Response negotiated_forward_backward_response(const api::ForwardBackwardResult& result) {
  const size_t bytes = bytes_of(result);
  const auto make = [kept =
                         std::make_shared<const api::ForwardBackwardResult>(result)](bool as_json) {
    return as_json ? forward_backward_json_response(*kept) : forward_backward_response(*kept);
  };
  Response response;
  response.encoding = std::make_shared<const Encoding>(Encoding{make, bytes});
  return response;
}

Response sample_response(const api::SampleOutput& output,
                         const std::optional<TensorParts>& targets) {
  pb::SampleResponse out;
  for (const api::SampledSequence& sequence : output.sequences) {
    fill_sequence(sequence, *out.add_sequences());
  }
  if (!output.prompt_logprobs.empty()) out.set_prompt_logprobs(packed(output.prompt_logprobs));
  if (output.prompt_topk.k > 0) fill_topk(output.prompt_topk, *out.mutable_topk_prompt_logprobs());
  if (targets)
    fill_targets(output.prompt_target_logprobs, *targets, *out.mutable_target_prompt_logprobs());
  if (output.prompt_draws.k > 0) fill_draws(output.prompt_draws, *out.mutable_prompt_alt_tokens());
  out.set_prompt_cache_hit_tokens(static_cast<int32_t>(output.cached_tokens));
  return proto_response(out);
}

Response optim_response(const api::StepResult& result) {
  JsonObject metrics;
  const auto add = [&](const char* name, double value) {
    if (std::isfinite(value)) metrics.add(name, Json::written(fmt::format("{:.9g}", value)));
  };
  add("stepped:max", result.stepped ? 1.0 : 0.0);
  add("grad_norm:mean", result.grad_norm);
  add("optimizer_step:max", static_cast<double>(result.step));
  return json_response(200, JsonObject{{"metrics", metrics}}.text());
}

}  // namespace strata::server
