// SPDX-License-Identifier: Apache-2.0
// TensorSink: where an engine run puts its large results, by name, in memory the sink owns. The
// caller makes it, passes it to one run and reads it after. One thread at a time.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace strata::api {

struct NamedTensor {
  std::vector<int64_t> shape;
  std::vector<float> values;  // C order
};

class TensorSink {
 public:
  // A zeroed tensor under this name; the reference stays valid.
  NamedTensor& add(const std::string& name, const std::vector<int64_t>& shape) {
    int64_t count = 1;
    for (const int64_t dim : shape) count *= dim;
    NamedTensor& tensor = tensors_[name];
    tensor.shape = shape;
    tensor.values.assign(static_cast<size_t>(count), 0.0f);
    return tensor;
  }
  // One that was added before.
  NamedTensor& at(const std::string& name) { return tensors_.at(name); }
  [[nodiscard]] const std::map<std::string, NamedTensor>& tensors() const { return tensors_; }

 private:
  std::map<std::string, NamedTensor> tensors_;
};

}  // namespace strata::api
