// SPDX-License-Identifier: Apache-2.0
// What a file is that somebody gave where another was wanted, by its name and its first bytes: so
// that a message says what it is and what helps. Reads a few bytes at most; any thread.
#pragma once
#include <string>
#include <string_view>

namespace strata {

struct FileKind {
  enum class Belongs { kAnywhere, kToModel, kToAdapter, kToData };

  std::string_view what = "a file";  // "the weights of a LoRA adapter"
  std::string_view help = {};        // what to do with it; empty: nothing is known
  Belongs belongs = Belongs::kAnywhere;
};
FileKind kind_of_file(const std::string& path);

// "version https://git-lfs...": what git leaves in place of a large file that was not fetched.
bool is_git_lfs_pointer(std::string_view begin);
inline constexpr FileKind kGitLfsPointer = {
    .what = "a pointer of git-lfs, in place of a file that was not fetched",
    .help = "git lfs pull in its folder fetches it (or hf download ORG/NAME)"};

// "this is data, one JSON object a line; it goes behind --data"
std::string describe_file_kind(const FileKind& kind);

}  // namespace strata
