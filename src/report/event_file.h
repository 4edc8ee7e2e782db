// SPDX-License-Identifier: Apache-2.0
// EventFile: metrics as TensorBoard reads them: a file of records (length, payload and masked
// CRC-32C of both), each a protobuf message tensorflow.Event. A run that is resumed writes a file
// of its own next to the older ones. One thread.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "report/metrics_log.h"

namespace strata::report {

// The checksum of iSCSI and TFRecord: polynomial 0x1EDC6F41, reflected.
uint32_t crc32c(std::string_view bytes);

// The bytes of one record of a file.
std::string tf_record(std::string_view payload);

// Messages tensorflow.Event. Seconds are since 1970.
std::string version_event(double seconds);
std::string scalar_event(double seconds, int64_t step, std::span<const Metric> metrics);
// What TensorBoard has of this step and later ones of other files is not shown.
std::string start_event(double seconds, int64_t step);

class EventFile {
 public:
  // Makes the folder, and a new file in it.
  explicit EventFile(const std::string& dir);
  ~EventFile();
  EventFile(EventFile&& other) noexcept;
  EventFile& operator=(EventFile&&) = delete;

  // Numbers alone; what is not finite is left out.
  void append(int64_t step, std::span<const Metric> metrics);
  // A resumed run goes on with this step.
  void start_at(int64_t step);
  void sync();

 private:
  EventFile() = default;
  void create_file(const std::string& dir, double now);
  void write(const std::string& bytes);
  std::string path_;
  int fd_ = -1;
};

}  // namespace strata::report
