// SPDX-License-Identifier: Apache-2.0
// Which tensors a model has in a GGUF file, and the orders in which the file has their values: what
// the reader (checkpoint/gguf/) makes of the header, so that both directions have one table.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "checkpoint/gguf/architecture.h"
#include "checkpoint/gguf/gguf_header.h"
#include "checkpoint/gguf/gguf_model.h"
#include "checkpoint/source.h"
#include "model/weights/load.h"

namespace strata::model {

// A weight under Hugging Face's canonical name: where its values are.
struct WeightOrigin {
  std::string tensor;     // of the source
  int64_t first_row = 0;  // in it, leading axes flattened
  Shape shape;
};

// Every weight of a model, in the order of its table; multi-token prediction's where it has any.
class WeightOrigins {
 public:
  // With `unties` the source has embedding and head apart, and `names` says that they are tied.
  WeightOrigins(const CheckpointSource& source, const LoadedModel& names, bool unties);

  struct Item {
    std::string name;
    int64_t num_experts = 0;  // 0: not of experts; of those only the first is listed
  };
  [[nodiscard]] const std::vector<Item>& items() const { return items_; }
  [[nodiscard]] const WeightOrigin& at(const std::string& name) const { return origins_.at(name); }

 private:
  void add(const std::string& name, WeightOrigin origin, int64_t num_experts);

  std::vector<Item> items_;
  std::unordered_map<std::string, WeightOrigin> origins_;
};

// Adds the model's tensors to a header. `type` as in GgufOptions.
void add_model_tensors(const ModelConfig& config, const WeightOrigins& origins,
                       const std::string& type, const std::string& where, GgufHeader& header);

// What the reader makes of a header, as of a file whose data are zeroes behind the first ones.
class ParsedHeader {
 public:
  explicit ParsedHeader(const GgufHeader& header, std::span<const float> first_data = {});
  ParsedHeader(const ParsedHeader&) = delete;
  ParsedHeader& operator=(const ParsedHeader&) = delete;

  // A fault's text without the path of the file that never was.
  static std::string without_path(const std::string& fault);

  [[nodiscard]] const GgufModel& model() const { return *model_; }
  [[nodiscard]] const std::vector<GgufWeight>& weights() const { return weights_; }

 private:
  std::unique_ptr<GgufModel> model_;
  std::vector<GgufWeight> weights_;
};

// Item i of each of `outer` lists of items of `run` values goes where order[i] says. An empty order
// changes nothing.
void permute_items(const std::vector<int32_t>& order, int64_t run, int64_t outer,
                   std::vector<float>& values);

}  // namespace strata::model
