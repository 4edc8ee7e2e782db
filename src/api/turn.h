// SPDX-License-Identifier: Apache-2.0
// Turn: what the first of several processes that have a model's stages tells the others to do next,
// as it does itself; TurnBook: a Turn as bytes. A command of data or samples, which may take many
// turns, is sent once, and then named by its request. Both sides forget it with its result: they
// come to the same ones. A grammar stays where it is: elsewhere a command says that there is one.
// Plain values.
//   const std::string bytes = here.to_bytes(turn);  ...  Turn turn = there.from_bytes(bytes);
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "api/result.h"
#include "api/work.h"

namespace strata::api {

// A file that was read or written, and who had asked for it.
struct FileNews {
  uint8_t what = 0;  // the kind of job, which the engine knows
  std::string name = {};
  bool failed = false;
  int32_t code = 0;  // of its fault
  std::string fault = {};
};

struct Turn {
  // kSample and kFile may break in on kWork, until kResume.
  enum class Kind : uint8_t { kWork, kSample, kFile, kResume, kEnd };
  Kind kind = Kind::kWork;
  BaseId base = {};
  Work work = {};           // of kWork and kSample
  int64_t step_tokens = 0;  // of its sampling step, at most
  FileNews file = {};       // of kFile
};

class TurnBook {
 public:
  [[nodiscard]] std::string to_bytes(const Turn& turn);
  // Bytes come from this program: a CHECK where they do not fit.
  [[nodiscard]] Turn from_bytes(std::string_view bytes);
  // What has come of a turn, on both sides.
  void forget_ended(const std::vector<Result>& results);

 private:
  class Writer;
  class Reader;
  std::map<RequestId, std::shared_ptr<const Command>> commands_;
};

}  // namespace strata::api
