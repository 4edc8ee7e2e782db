// SPDX-License-Identifier: Apache-2.0
#include "tests/golden/generated_model.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "checkpoint/safetensors_writer.h"

namespace strata::golden {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

struct TensorRow {
  TensorDecl decl;
  int64_t mean = 0;    // in units of 1/1024, as `spread`; of a table: below which its numbers are
  int64_t spread = 0;  // of [-1, 1)
  std::string source;  // not empty: whose values these are
};

DType dtype_of(const json::string& name) {
  return name == "BF16" ? DType::kBF16 : name == "F16" ? DType::kF16 : DType::kF32;
}

TensorRow read_row(const json::array& row) {
  TensorRow out;
  out.decl = {
      .name = row[0].as_string().c_str(), .dtype = dtype_of(row[1].as_string()), .shape = {}};
  if (row[1].as_string() == "I64") out.decl.integer_bytes = 8;
  for (const json::value& dim : row[2].as_array()) out.decl.shape.push_back(dim.as_int64());
  if (row[3].is_null()) {
    out.source = row[4].as_string().c_str();
  } else {
    out.mean = row[3].as_int64();
    out.spread = row[4].as_int64();
  }
  return out;
}

// splitmix64 from FNV-1a of the name on.
class Words {
 public:
  Words(uint64_t seed, const std::string& name) : state_(0xcbf29ce484222325 ^ seed) {
    for (const char c : name) state_ = (state_ ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  uint64_t next() {
    state_ += 0x9e3779b97f4a7c15;
    uint64_t x = state_;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  }

 private:
  uint64_t state_;
};

std::vector<float> make_values(uint64_t seed, const TensorRow& row) {
  Words words(seed, row.decl.name);
  std::vector<float> values(static_cast<size_t>(row.decl.shape.num_elements()));
  for (float& value : values) {
    const double u = static_cast<double>(words.next() >> 40) * 0x1p-23 - 1.0;
    value = static_cast<float>(static_cast<double>(row.mean) / 1024.0 +
                               static_cast<double>(row.spread) / 1024.0 * u);
  }
  return values;
}

std::vector<int64_t> make_table(uint64_t seed, const TensorRow& row) {
  Words words(seed, row.decl.name);
  std::vector<int64_t> values;
  for (int64_t i = 0; i < row.decl.shape[0]; ++i) {
    const auto start = static_cast<int64_t>(words.next() % static_cast<uint64_t>(row.mean));
    for (int64_t j = 0; j < row.decl.shape[1]; ++j) values.push_back((start + j) % row.mean);
  }
  return values;
}

using Rows = std::map<std::string, TensorRow>;

void write_file(const std::string& path, uint64_t seed, const json::array& rows, const Rows& all) {
  std::vector<TensorDecl> decls;
  for (const json::value& row : rows) decls.push_back(read_row(row.as_array()).decl);
  SafetensorsWriter writer(path, decls, {{"format", "pt"}});
  for (const TensorDecl& decl : writer.tensors()) {
    const TensorRow& row = all.at(decl.name);
    if (decl.integer_bytes > 0) {
      const std::vector<int64_t> table = make_table(seed, row);
      writer.append(decl.name, std::as_bytes(std::span(table)));
    } else {
      writer.append_f32(decl.name,
                        make_values(seed, row.source.empty() ? row : all.at(row.source)));
    }
  }
  writer.commit();
}

void collect(const json::array& rows, Rows& all) {
  for (const json::value& value : rows) {
    TensorRow row = read_row(value.as_array());
    const std::string name = row.decl.name;
    all[name] = std::move(row);
  }
}

void write_index(const std::string& path, const json::object& files) {
  json::object weight_map;
  for (const auto& [file, rows] : files) {
    for (const json::value& row : rows.as_array()) {
      weight_map[row.as_array()[0].as_string()] = json::string(file);
    }
  }
  std::ofstream(path) << json::serialize(
      json::object{{"metadata", json::object()}, {"weight_map", std::move(weight_map)}});
}

}  // namespace

GeneratedModel write_generated(const json::object& row, const std::string& folder) {
  const auto seed = static_cast<uint64_t>(row.at("seed").as_int64());
  GeneratedModel out{.model = folder + "/model", .adapters = {}};
  fs::create_directories(out.model);
  std::ofstream(out.model + "/config.json") << json::serialize(row.at("config"));
  const json::object& files = row.at("files").as_object();
  Rows all;
  for (const auto& [file, rows] : files) collect(rows.as_array(), all);
  for (const auto& [file, rows] : files) {
    write_file(out.model + "/" + std::string(file), seed, rows.as_array(), all);
  }
  if (files.size() > 1) write_index(out.model + "/model.safetensors.index.json", files);
  for (const json::value& adapter : row.at("adapters").as_array()) {
    const std::string path = folder + "/" + std::to_string(out.adapters.size());
    fs::create_directories(path);
    std::ofstream(path + "/adapter_config.json") << json::serialize(adapter.at("config"));
    Rows own;
    collect(adapter.at("tensors").as_array(), own);
    write_file(path + "/adapter_model.safetensors", seed + 1 + out.adapters.size(),
               adapter.at("tensors").as_array(), own);
    out.adapters.push_back(path);
  }
  return out;
}

}  // namespace strata::golden
