// SPDX-License-Identifier: Apache-2.0
// MetricsLog: one JSON object a line, appended with one write each, so a reader never sees half a
// line but the last, and a killed run loses at most the line being written. Every record has an
// integer "step". Resuming at step s drops the records after s (and a torn last line), so a resumed
// run's file equals that of a run that was never stopped. One thread.
//   MetricsLog log(path);
//   log.append(step, {{"loss", loss}, {"tokens", tokens}});
#pragma once
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace strata::report {

struct Metric {
  std::string_view name;
  std::variant<int64_t, double, std::string_view>
      value;  // a double that is not finite becomes null
};

// One record as read back: fields of other types than number are left out.
struct MetricsRecord {
  int64_t step = 0;
  std::vector<std::pair<std::string, double>> numbers;
  // The number of that name, or NaN.
  [[nodiscard]] double number(std::string_view name) const;
};

class MetricsLog {
 public:
  // An existing file is emptied.
  explicit MetricsLog(std::string path);
  // Keeps the records with step <= last_step and appends after them. A missing file is an empty
  // one; a line that is not such a record, other than a torn last one, is an Error that names file
  // and line.
  static MetricsLog resume(std::string path, int64_t last_step);
  ~MetricsLog();
  MetricsLog(MetricsLog&& other) noexcept;
  MetricsLog& operator=(MetricsLog&&) = delete;

  void append(int64_t step, std::span<const Metric> metrics);
  void append(int64_t step, std::initializer_list<Metric> metrics) {
    append(step, std::span(metrics.begin(), metrics.size()));
  }
  // Durable up to here when it returns; call it where a checkpoint is saved.
  void sync();

 private:
  MetricsLog(std::string path, int flags);
  std::string path_;
  int fd_ = -1;
};

// Every record of a metrics file, a torn last line left out.
std::vector<MetricsRecord> read_metrics(const std::string& path);

}  // namespace strata::report
