#include "server/protocol/results.h"

#include <fmt/format.h>
#include <server/protocol/tinker.pb.h>

#include <cmath>
#include <cstring>
#include <map>

#include "base/check.h"
#include "server/json.h"
#include "server/protocol/tensor.h"

namespace strata::server {
namespace {

namespace pb = tinker_public;

Response proto_response(const google::protobuf::MessageLite& message) {
  Response response;
  response.content_type = "application/x-protobuf";
  response.body = message.SerializeAsString();
  return response;
}

// The arrays of a field, each as TensorData.
std::vector<std::string> tensor_texts(const pb::BatchedTensor& tensor, size_t count) {
  std::vector<int64_t> offsets(count + 1);
  std::memcpy(offsets.data(), tensor.offsets().data(), offsets.size() * sizeof(int64_t));
  const int64_t columns = tensor.trailing_shape_size() > 0 ? tensor.trailing_shape(0) : 0;
  std::vector<std::string> out;
  for (size_t i = 0; i < count; ++i) {
    std::string data;
    for (int64_t at = offsets[i]; at < offsets[i + 1]; at += sizeof(float)) {
      float value = 0;
      std::memcpy(&value, tensor.data().data() + at, sizeof value);
      if (!data.empty()) data += ',';
      // As a double, so that a reader of doubles has the very number.
      data += std::isfinite(value) ? fmt::format("{}", static_cast<double>(value)) : "null";
    }
    const auto size = (offsets[i + 1] - offsets[i]) / static_cast<int64_t>(sizeof(float));
    out.push_back(fmt::format(
        R"({{"data":[{}],"dtype":"float32","shape":[{}]}})", data,
        columns > 0 ? fmt::format("{},{}", size / columns, columns) : std::to_string(size)));
  }
  return out;
}

// Data [first, last), all with the same trailing shape.
void add_record(const api::ForwardBackwardResult& result, size_t first, size_t last,
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
    size_t last = first + 1;
    while (last < result.data.size() &&
           result.data[last].num_targets == result.data[first].num_targets) {
      ++last;
    }
    add_record(result, first, last, out);
    first = last;
  }
  for (const auto& [name, value] : result.metrics) (*out.mutable_metrics())[name] = value;
  return proto_response(out);
}

Response forward_backward_json(const std::string& message) {
  pb::ForwardBackwardOutput output;
  CHECK(output.ParseFromString(message), message.size());
  JsonArray outputs;
  for (const pb::ArrayRecord& record : output.loss_fn_outputs()) {
    const auto count = static_cast<size_t>(record.num_datums());
    for (std::string& text : tensor_texts(record.fields().at("logprobs"), count))
      outputs.add(JsonObject{{"logprobs", Json::written(std::move(text))}});
  }
  JsonObject metrics;
  const std::map<std::string, double> sorted(output.metrics().begin(), output.metrics().end());
  for (const auto& [name, value] : sorted) {
    if (std::isfinite(value)) metrics.add(name, value);
  }
  return json_response(200, JsonObject{{"loss_fn_output_type", output.loss_fn_output_type()},
                                       {"loss_fn_outputs", outputs},
                                       {"metrics", metrics}}
                                .text());
}

Response sample_response(const api::SampleOutput& output, const TensorParts& targets) {
  pb::SampleResponse out;
  for (const api::SampledSequence& sequence : output.sequences) {
    pb::SampledSequence& to = *out.add_sequences();
    to.set_stop_reason(sequence.stopped ? pb::STOP_REASON_STOP : pb::STOP_REASON_LENGTH);
    to.set_tokens(packed(sequence.tokens));
    to.set_logprobs(packed(sequence.logprobs));
    if (sequence.topk.k > 0) fill_topk(sequence.topk, *to.mutable_topk_sampled_logprobs());
  }
  if (!output.prompt_logprobs.empty()) out.set_prompt_logprobs(packed(output.prompt_logprobs));
  if (output.prompt_topk.k > 0) fill_topk(output.prompt_topk, *out.mutable_topk_prompt_logprobs());
  if (!targets.shape.empty())
    fill_targets(output.prompt_target_logprobs, targets, *out.mutable_target_prompt_logprobs());
  if (output.prompt_draws.k > 0) fill_draws(output.prompt_draws, *out.mutable_prompt_alt_tokens());
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
