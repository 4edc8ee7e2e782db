// SPDX-License-Identifier: Apache-2.0
// AdapterArchive: the archive of a checkpoint that a server's download gives, as a PEFT directory
// for as long as this lives. Of what it holds, the adapter's two files alone are unpacked, to a
// folder of temporary files that nobody else may read.
#pragma once
#include <string>

namespace strata::apps {

class AdapterArchive {
 public:
  // Error{kInvalidArgument} for what is no archive of a server, or none of an adapter.
  explicit AdapterArchive(const std::string& path);
  ~AdapterArchive();
  AdapterArchive(const AdapterArchive&) = delete;
  AdapterArchive& operator=(const AdapterArchive&) = delete;

  [[nodiscard]] const std::string& dir() const { return dir_; }

 private:
  void unpack_adapter(const std::string& path) const;

  std::string dir_;
};

}  // namespace strata::apps
