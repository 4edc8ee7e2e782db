// SPDX-License-Identifier: Apache-2.0
#include "tests/golden/altered_golden.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "checkpoint/checkpoint_dir.h"
#include "checkpoint/safetensors_writer.h"

namespace strata::golden {
namespace {

namespace fs = std::filesystem;

using Tables = std::vector<std::pair<TensorDecl, std::vector<std::byte>>>;

Tables read_tables(const std::string& folder) {
  Tables tables;
  const CheckpointDir checkpoint(folder);
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    if (tensor.info.integer_bytes() == 0) continue;
    TensorDecl decl{.name = tensor.info.name, .shape = {}};
    decl.integer_bytes = tensor.info.integer_bytes();
    for (const int64_t dim : tensor.info.dims) decl.shape.push_back(dim);
    std::vector<std::byte> bytes(static_cast<size_t>(tensor.info.num_bytes()));
    checkpoint.read_bytes(tensor, 0, bytes);
    tables.emplace_back(std::move(decl), std::move(bytes));
  }
  return tables;
}

void write_tensors(const std::string& path, const Tensors& tensors, const Tables& tables = {}) {
  std::vector<TensorDecl> decls;
  for (const auto& [name, tensor] : tensors) {
    TensorDecl decl{.name = name, .dtype = DType::kF32, .shape = {}};
    for (const int64_t dim : tensor.dims) decl.shape.push_back(dim);
    decls.push_back(std::move(decl));
  }
  for (const auto& [decl, bytes] : tables) decls.push_back(decl);
  SafetensorsWriter writer(path, decls, {{"format", "pt"}});
  for (const TensorDecl& decl : writer.tensors()) {
    const auto table = std::find_if(tables.begin(), tables.end(),
                                    [&](const auto& item) { return item.first.name == decl.name; });
    if (table == tables.end()) {
      writer.append_f32(decl.name, tensors.at(decl.name).values);
    } else {
      writer.append(decl.name, table->second);
    }
  }
  writer.commit();
}

Tensors read_folder(const std::string& folder) {
  Tensors tensors;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") tensors.merge(read_tensors(entry.path()));
  }
  return tensors;
}

int visit_suffix(Tensors& tensors, const std::string& suffix,
                 const std::function<void(Tensor&)>& visit) {
  int count = 0;
  for (auto& [name, tensor] : tensors) {
    if (!name.ends_with(suffix)) continue;
    visit(tensor);
    ++count;
  }
  return count;
}

int64_t width_of(const Tensor& tensor) {
  return static_cast<int64_t>(tensor.values.size()) / tensor.dims[0];
}

void permute_tensor_columns(Tensor& tensor, const std::vector<int64_t>& order) {
  const Tensor from = tensor;
  const int64_t width = width_of(tensor);
  ASSERT_EQ(static_cast<int64_t>(order.size()), width);
  for (int64_t i = 0; i < tensor.dims[0] * width; ++i) {
    const int64_t column = order[static_cast<size_t>(i % width)];
    tensor.values[static_cast<size_t>(i)] =
        from.values[static_cast<size_t>(i - i % width + column)];
  }
}

}  // namespace

void permute_rows(Tensor& tensor, const std::vector<int64_t>& order) {
  const Tensor from = tensor;
  const int64_t width = width_of(tensor);
  ASSERT_EQ(static_cast<int64_t>(order.size()), tensor.dims[0]);
  for (size_t i = 0; i < order.size(); ++i) {
    std::copy_n(from.values.begin() + order[i] * width, width,
                tensor.values.begin() + static_cast<int64_t>(i) * width);
  }
}

AlteredGolden::AlteredGolden(const std::string& name) {
  for (GoldenRow& found : read_goldens()) {
    if (found.name == name) row = std::move(found);
  }
  EXPECT_EQ(row.name, name);
  config = read_json(row.model + "/config.json").as_object();
  request = read_json(row.request).as_object();
  request["want"] = boost::json::array{"hidden_states", "logits"};
  model = read_folder(row.model);
  for (const std::string& adapter : row.adapters) adapters.push_back(read_folder(adapter));
}

void AlteredGolden::each(const std::string& suffix, const std::function<void(Tensor&)>& visit) {
  EXPECT_GT(visit_suffix(model, suffix, visit), 0) << suffix;
}

void AlteredGolden::each_adapters(const std::string& suffix,
                                  const std::function<void(Tensor&)>& visit) {
  int count = 0;
  for (Tensors& adapter : adapters) count += visit_suffix(adapter, suffix, visit);
  EXPECT_GT(count, 0) << suffix;
}

void AlteredGolden::permute_rows(const std::string& module, const std::vector<int64_t>& order) {
  const auto permute = [&](Tensor& tensor) { golden::permute_rows(tensor, order); };
  each(module + ".weight", permute);
  for (Tensors& adapter : adapters) visit_suffix(adapter, module + ".lora_B.weight", permute);
}

void AlteredGolden::permute_columns(const std::string& module, const std::vector<int64_t>& order) {
  const auto permute = [&](Tensor& tensor) { permute_tensor_columns(tensor, order); };
  each(module + ".weight", permute);
  for (Tensors& adapter : adapters) visit_suffix(adapter, module + ".lora_A.weight", permute);
}

void AlteredGolden::scale_rows(const std::string& module, int64_t begin, int64_t end,
                               float factor) {
  const auto scale = [&](Tensor& tensor) {
    const int64_t width = width_of(tensor);
    std::for_each(tensor.values.begin() + begin * width, tensor.values.begin() + end * width,
                  [factor](float& value) { value *= factor; });
  };
  each(module + ".weight", scale);
  for (Tensors& adapter : adapters) visit_suffix(adapter, module + ".lora_B.weight", scale);
}

void AlteredGolden::exchange(const std::string& one, const std::string& other) {
  const auto rename = [&](Tensors& tensors) {
    Tensors renamed;
    for (auto& [name, tensor] : tensors) {
      std::string to = name;
      const size_t at = name.find(one + ".");
      const size_t other_at = name.find(other + ".");
      if (at != std::string::npos) to.replace(at, one.size(), other);
      if (other_at != std::string::npos) to.replace(other_at, other.size(), one);
      renamed[to] = std::move(tensor);
    }
    EXPECT_EQ(renamed.size(), tensors.size());
    tensors = std::move(renamed);
  };
  rename(model);
  for (Tensors& adapter : adapters) rename(adapter);
}

Tensors AlteredGolden::run() const {
  const fs::path folder = temporary_path("altered");
  fs::remove_all(folder);
  Probe probe{
      .model = folder / "model", .request = folder / "request.json", .options = {"--dtype", "f32"}};
  fs::create_directories(probe.model);
  write_tensors(probe.model + "/model.safetensors", model,
                has_tables ? read_tables(row.model) : Tables());
  std::ofstream(probe.model + "/config.json") << boost::json::serialize(config);
  std::ofstream(probe.request) << boost::json::serialize(request);
  for (size_t i = 0; i < adapters.size(); ++i) {
    const fs::path adapter = folder / std::to_string(i);
    fs::create_directories(adapter);
    write_tensors(adapter / "adapter_model.safetensors", adapters[i]);
    fs::copy(row.adapters[i] + "/adapter_config.json", adapter);
    probe.adapters.push_back(adapter);
  }
  ProbeResult result = run_probe(probe);
  EXPECT_EQ(result.exit_code, 0) << result.message;
  fs::remove_all(folder);
  return std::move(result.tensors);
}

}  // namespace strata::golden
