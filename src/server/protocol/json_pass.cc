#include "server/protocol/json_pass.h"

#include <fmt/format.h>
#include <server/protocol/tinker.pb.h>

#include <cstdint>
#include <string>
#include <vector>

#include "server/protocol/model_input.h"
#include "server/protocol/pass_scan.h"
#include "server/protocol/tensor.h"

namespace strata::server {
namespace {

namespace pb = tinker_public;

// The values' bytes; sets the type.
std::string read_values(const Fields& tensor, pb::Tensor& out) {
  const std::string dtype = tensor.string("dtype");
  if (dtype == "int64") {
    out.set_dtype(pb::DTYPE_INT64);
    return packed(tensor.integers("data"));
  }
  if (dtype == "float32") {
    out.set_dtype(pb::DTYPE_FLOAT32);
    return packed(tensor.floats("data"));
  }
  tensor.fail("dtype", fmt::format("got '{}', wanted 'int64' or 'float32'", dtype.substr(0, 100)));
}

void read_tensor(const Fields& tensor, pb::Tensor& out) {
  std::string values = read_values(tensor, out);
  if (tensor.has("shape")) {
    for (const int64_t dim : tensor.integers("shape")) out.add_shape(dim);
  }
  if (!tensor.has("sparse_crow_indices") && !tensor.has("sparse_col_indices")) {
    out.set_dense(std::move(values));
    return;
  }
  pb::SparseCsr& csr = *out.mutable_sparse_csr();
  csr.set_values(std::move(values));
  csr.set_crow_indices(packed(tensor.integers("sparse_crow_indices")));
  csr.set_col_indices(packed(tensor.integers("sparse_col_indices")));
}

void read_datum(const Fields& datum, pb::Datum& out) {
  for (const char* name : {"model_input_spans", "loss_fn_input_spans"}) {
    if (datum.has(name)) datum.fail(name, "is read from application/x-protobuf bodies only");
  }
  const std::vector<int32_t> tokens =
      read_model_input(datum.object("model_input"), INT32_MIN, INT32_MAX);
  out.add_model_input()->mutable_encoded_text()->set_tokens(packed(tokens));
  const Fields inputs = datum.object("loss_fn_inputs");
  inputs.each_name([&](const std::string& name) {
    read_tensor(inputs.object(name), (*out.mutable_loss_fn_inputs())[name]);
  });
}

void read_options(const Fields& config, pb::ForwardBackwardRequest& message) {
  config.each_name([&](const std::string& name) {
    pb::LossConfigValue& value = (*message.mutable_loss_fn_config_v2())[name];
    if (config.is_string(name)) {
      value.set_text(config.string(name));
    } else {
      value.set_number(config.number(name));
    }
  });
}

}  // namespace

void read_json_pass(const Fields& body, std::string_view input,
                    pb::ForwardBackwardRequest& message) {
  if (body.boolean_or("forward_only", false) && !message.forward_only()) {
    body.fail("forward_only", "JSON bodies ask for it by POST forward");
  }
  const Fields fields = body.object(input);
  message.set_loss_fn(fields.string("loss_fn"));
  if (fields.has("loss_fn_config")) read_options(fields.object("loss_fn_config"), message);
  fields.each_object("data", [&](const Fields& datum) {
    check_num_data(message.data_size() + 1);
    read_datum(datum, *message.add_data());
  });
}

}  // namespace strata::server
