// SPDX-License-Identifier: Apache-2.0
#include "report/metrics_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/function_ref.h"
#include "text/json_field.h"

namespace strata::report {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{1} << 32;

[[noreturn]] void fail_io(const std::string& path, const char* what) {
  throw Error(ErrorCode::kIo, fmt::format("{}: {}: {}", path, what, std::strerror(errno)));
}

std::string quoted(std::string_view text) {
  return boost::json::serialize(boost::json::string(text));
}

std::string json_number(double value) {
  return std::isfinite(value) ? fmt::format("{}", value) : "null";
}

std::string json_value(const Metric& metric) {
  if (const auto* whole = std::get_if<int64_t>(&metric.value)) return fmt::format("{}", *whole);
  if (const auto* real = std::get_if<double>(&metric.value)) return json_number(*real);
  return quoted(std::get<std::string_view>(metric.value));
}

std::vector<std::pair<std::string, double>> numbers_of(const boost::json::object& record) {
  std::vector<std::pair<std::string, double>> numbers;
  for (const auto& field : record) {
    if (field.value().is_number())
      numbers.emplace_back(field.key(), field.value().to_number<double>());
  }
  return numbers;
}

MetricsRecord parse_record(std::string_view line, const std::string& where) {
  const boost::json::value value = text::parse_json(line, where);
  const boost::json::object* object = value.if_object();
  const boost::json::value* step = object == nullptr ? nullptr : object->if_contains("step");
  if (step == nullptr || !step->is_int64()) {
    throw Error(ErrorCode::kInvalidArgument,
                where + ": want a JSON object with an integer \"step\"; not a metrics file?");
  }
  return {.step = step->get_int64(), .numbers = numbers_of(*object)};
}

// Calls visit(record, line with its newline) for each whole line.
void for_each_record(const std::string& path, std::string_view content,
                     FunctionRef<void(MetricsRecord, std::string_view)> visit) {
  int64_t line_idx = 0;
  for (size_t begin = 0; begin < content.size();) {
    const size_t end = content.find('\n', begin);
    if (end == std::string_view::npos) return;  // torn by a kill
    ++line_idx;
    const std::string_view line = content.substr(begin, end - begin);
    visit(parse_record(line, fmt::format("{}:{}", path, line_idx)),
          content.substr(begin, end + 1 - begin));
    begin = end + 1;
  }
}

// And a torn last line.
void drop_records_after(const std::string& path, int64_t last_step) {
  const std::string content = read_file(path, kMaxFileBytes);
  std::string kept;
  for_each_record(path, content, [&](const MetricsRecord& record, std::string_view line) {
    if (record.step <= last_step) kept.append(line);
  });
  if (kept.size() != content.size()) write_file_atomic(path, kept);
}

std::string record_line(int64_t step, std::span<const Metric> metrics) {
  std::string line = fmt::format("{{\"step\":{}", step);
  for (const Metric& metric : metrics) {
    line += "," + quoted(metric.name) + ":" + json_value(metric);
  }
  return line + "}\n";
}

}  // namespace

double MetricsRecord::number(std::string_view name) const {
  for (const auto& [key, value] : numbers) {
    if (key == name) return value;
  }
  return std::numeric_limits<double>::quiet_NaN();
}

MetricsLog::MetricsLog(std::string path, int flags) : path_(std::move(path)) {
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | flags, 0666);
  if (fd_ < 0) fail_io(path_, "open");
}

MetricsLog::MetricsLog(std::string path) : MetricsLog(std::move(path), O_TRUNC) {}

MetricsLog MetricsLog::resume(std::string path, int64_t last_step) {
  if (file_exists(path)) drop_records_after(path, last_step);
  return MetricsLog(std::move(path), 0);
}

MetricsLog::~MetricsLog() {
  if (fd_ >= 0) ::close(fd_);
}

MetricsLog::MetricsLog(MetricsLog&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

void MetricsLog::append(int64_t step, std::span<const Metric> metrics) {
  const std::string line = record_line(step, metrics);
  ssize_t written = -1;
  do {
    written = ::write(fd_, line.data(), line.size());
  } while (written < 0 && errno == EINTR);
  if (written != static_cast<ssize_t>(line.size())) {
    if (written >= 0) errno = ENOSPC;
    fail_io(path_, "write");
  }
}

void MetricsLog::sync() {
  if (::fdatasync(fd_) != 0) fail_io(path_, "fdatasync");
}

std::vector<MetricsRecord> read_metrics(const std::string& path) {
  std::vector<MetricsRecord> records;
  for_each_record(
      path, read_file(path, kMaxFileBytes),
      [&](MetricsRecord record, std::string_view) { records.push_back(std::move(record)); });
  return records;
}

}  // namespace strata::report
