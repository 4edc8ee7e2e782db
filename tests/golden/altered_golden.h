// SPDX-License-Identifier: Apache-2.0
// A golden's model, adapters and request, changed before the program reads them: what is right then
// computes what a mistake would compute from the files as they are. One temporary folder a process.
//   AlteredGolden altered("qwen3_5/main");
//   altered.each("A_log", [](Tensor& tensor) { ... });
//   Tensors got = altered.run();
#pragma once
#include <functional>

#include "tests/golden/probe_run.h"

namespace strata::golden {

struct AlteredGolden {
  explicit AlteredGolden(const std::string& name);

  GoldenRow row;
  boost::json::object config;   // of the text model
  boost::json::object request;  // wants hidden states and logits
  Tensors model;
  bool has_tables = true;  // of integers, which stay as they are
  std::vector<Tensors> adapters;

  [[nodiscard]] int64_t number(const char* key) const { return config.at(key).as_int64(); }
  // The tensors of the model, or of all adapters, whose names end in `suffix`; at least one.
  void each(const std::string& suffix, const std::function<void(Tensor&)>& visit);
  void each_adapters(const std::string& suffix, const std::function<void(Tensor&)>& visit);
  // Row (column) i becomes what was row (column) order[i], of the module's weight and of what its
  // adapters add to it. A convolution is a module too.
  void permute_rows(const std::string& module, const std::vector<int64_t>& order);
  void permute_columns(const std::string& module, const std::vector<int64_t>& order);
  // Rows [begin, end) of the module, with what its adapters add, times `factor`.
  void scale_rows(const std::string& module, int64_t begin, int64_t end, float factor);
  // Exchanges the tensors of two modules.
  void exchange(const std::string& one, const std::string& other);

  [[nodiscard]] Tensors run() const;
};

// Row i of the result is row order[i].
void permute_rows(Tensor& tensor, const std::vector<int64_t>& order);

}  // namespace strata::golden
