// SPDX-License-Identifier: Apache-2.0
// NewFile: a file that was not there, written under its own name, for a folder that will appear as
// a whole. What is half written stays, and nothing is durable before sync_file_system(): of many
// files that is once, where an AtomicFile is durable each for itself. One thread.
#pragma once
#include <string>
#include <string_view>

namespace strata {

class NewFile {
 public:
  explicit NewFile(std::string path);  // Error{kIo} when it is there
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  void append(std::string_view text);
  void close();

 private:
  std::string path_;
  int fd_;
};

// Makes all that was written to the file system of this folder durable.
void sync_file_system(const std::string& folder);

}  // namespace strata
