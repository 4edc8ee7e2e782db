// SPDX-License-Identifier: Apache-2.0
#include "trainer/rollout_record.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <fstream>
#include <utility>

#include "base/error.h"
#include "base/file_io.h"
#include "base/files.h"
#include "text/json_reader.h"

namespace strata::apps {
namespace {

struct RecordedLine {
  int64_t step = 0;
  size_t sample = 0, of = 0;
  RecordedReward reward = {};
};

RecordedLine parse_line(const std::string& line, const std::string& where) {
  text::JsonReader reader(line, where);
  RecordedLine out;
  std::string key;
  for (reader.begin_object(); reader.next_key(key);) {
    if (key == "step") {
      out.step = reader.read_integer();
    } else if (key == "sample") {
      out.sample = static_cast<size_t>(reader.read_integer());
    } else if (key == "of") {
      out.of = static_cast<size_t>(reader.read_integer());
    } else if (key == "prompt") {
      out.reward.prompt = reader.read_integer();
    } else if (key == "tokens") {
      for (reader.begin_array(); reader.next_item();)
        out.reward.tokens.push_back(static_cast<int32_t>(reader.read_integer()));
    } else if (key == "reward") {
      out.reward.reward = reader.read_number();
    } else if (key == "omitted") {
      out.reward.omitted = reader.read_string();
    } else {
      reader.skip();
    }
  }
  reader.end();
  return out;
}

std::string line_of(int64_t step, size_t sample, size_t of, int64_t prompt,
                    const Rollout& rollout) {
  return fmt::format(
      R"({{"step":{},"sample":{},"of":{},"prompt":{},"tokens":[{}],"logprobs":[{}],{}}})"
      "\n",
      step, sample, of, prompt, fmt::join(rollout.tokens, ","), fmt::join(rollout.logprobs, ","),
      rollout.reward ? fmt::format("\"reward\":{}", *rollout.reward)
                     : fmt::format("\"omitted\":{}", text::json_quote(rollout.omitted)));
}

}  // namespace

RolloutRecord::RolloutRecord(std::string path, int64_t steps_done)
    : path_(std::move(path)), last_step_(steps_done) {
  if (!file_exists(path_)) return;
  std::ifstream file(path_);
  std::string line;
  int64_t bytes = 0, whole = 0;  // of all lines so far; of steps that are whole
  for (int64_t number = 1; std::getline(file, line) && !file.eof(); ++number) {
    bytes += std::ssize(line) + 1;
    const RecordedLine recorded = parse_line(line, fmt::format("{}:{}", path_, number));
    if (recorded.step > steps_done)
      known_[recorded.step].insert_or_assign(recorded.sample, recorded.reward);
    if (recorded.sample + 1 != recorded.of) continue;
    whole = bytes;
    last_step_ = std::max(last_step_, recorded.step);
  }
  file.close();
  if (::truncate(path_.c_str(), static_cast<off_t>(whole)) != 0) fail_io(path_, "truncate");
}

const RecordedReward* RolloutRecord::find(int64_t step, size_t index, int64_t prompt,
                                          const Rollout& rollout) const {
  const auto of_step = known_.find(step);
  if (of_step == known_.end()) return nullptr;
  const auto found = of_step->second.find(index);
  if (found == of_step->second.end()) return nullptr;
  const RecordedReward& known = found->second;
  if (known.prompt == prompt && known.tokens == rollout.tokens) return &known;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("resume: {}: step {}, sample {}: the model now gives another answer than "
                          "was recorded, so that the run cannot go on as it was; was the record "
                          "another run's? Remove the file to sample those steps anew",
                          path_, step, index));
}

void RolloutRecord::append(int64_t step, std::span<const RolloutGroup> groups) {
  known_.erase(step);
  if (step <= last_step_) return;
  size_t count = 0, sample = 0;
  for (const RolloutGroup& group : groups) count += group.rollouts.size();
  std::string lines;
  for (const RolloutGroup& group : groups) {
    for (const Rollout& rollout : group.rollouts)
      lines += line_of(step, sample++, count, group.prompt_number, rollout);
  }
  const OpenFile file(::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666));
  if (file.fd < 0) fail_io(path_, "open");
  write_all(file.fd, std::as_bytes(std::span(lines)), path_);
  if (::fsync(file.fd) != 0) fail_io(path_, "fsync");
  last_step_ = step;
}

}  // namespace strata::apps
