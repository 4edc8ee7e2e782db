// SPDX-License-Identifier: Apache-2.0
#include "setup/machine_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <string_view>

#include "base/error.h"
#include "base/files.h"
#include "text/json_field.h"

namespace strata::apps {
namespace {

namespace json = boost::json;

constexpr int64_t kMostBytes = 1 << 16;
constexpr std::string_view kFields[] = {"bf16_flops", "f32_flops", "read_bytes_per_s",
                                        "file_bytes_per_s"};

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("{}: {}; strata plan --save-machine FILE writes such a file", path, what));
}

double parse_positive_number(const std::string& path, const json::object& object,
                             std::string_view name) {
  const json::value* value = object.if_contains(name);
  if (value == nullptr) refuse(path, fmt::format("there is no {}", name));
  boost::system::error_code fault;
  const double number = value->is_number() ? value->to_number<double>(fault) : 0;
  if (fault.failed() || !std::isfinite(number) || number <= 0) {
    refuse(path, fmt::format("{}: got {}, want a positive number", name, json::serialize(*value)));
  }
  return number;
}

// Where limits are to be saved.
void check_no_machine_file(const std::string& file) {
  if (file.empty()) return;
  throw Error(ErrorCode::kInvalidArgument,
              "--machine and --save-machine: give one; what is saved is probed");
}

void save_machine_file(const std::string& path, Backend& backend, int64_t most_bytes) {
  const engine::MachineLimits bf16 = planner::probe_limits(backend, DType::kBF16, most_bytes);
  const engine::MachineLimits f32 = planner::probe_limits(backend, DType::kF32, most_bytes);
  const json::object object = {{kFields[0], bf16.flops},
                               {kFields[1], f32.flops},
                               {kFields[2], std::max(bf16.bytes, f32.bytes)},
                               {kFields[3], bf16.file_bytes}};
  write_file_atomic(path, json::serialize(object) + "\n");
}

}  // namespace

engine::MachineLimits read_machine_file(const std::string& path, DType dtype) {
  const json::value value = text::parse_json(read_file(path, kMostBytes), path);
  if (!value.is_object()) refuse(path, "want a JSON object");
  for (const auto& [key, ignored] : value.as_object()) {
    if (std::find(std::begin(kFields), std::end(kFields), key) == std::end(kFields))
      refuse(path, fmt::format("unknown field '{}'", std::string(key)));
  }
  const auto field = [&](size_t i) {
    return parse_positive_number(path, value.as_object(), kFields[i]);
  };
  const double bf16 = field(0), f32 = field(1);
  return {.flops = dtype == DType::kF32 ? f32 : bf16,
          .f32_flops = f32,
          .bytes = field(2),
          .file_bytes = field(3),
          .source = path};
}

engine::MachineLimits resolve_machine_limits(Backend& backend, DType dtype, int64_t most_bytes,
                                             const std::string& file, const std::string& save) {
  if (!save.empty()) {
    check_no_machine_file(file);
    save_machine_file(save, backend, most_bytes);
    return read_machine_file(save, dtype);
  }
  return file.empty() ? planner::probe_limits(backend, dtype, most_bytes)
                      : read_machine_file(file, dtype);
}

}  // namespace strata::apps
