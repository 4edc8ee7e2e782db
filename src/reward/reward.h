// SPDX-License-Identifier: Apache-2.0
// Reward: how good an answer is, as --reward says it: by a command (reward/workers.h), or by a rule
// about the record that the prompt is from. Rules rate an answer when it is submitted. One thread.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/option_table.h"
#include "reward/workers.h"
#include "structured/grammar.h"
#include "text/regex/regex.h"
#include "text/tokenizer/tokenizer.h"

namespace strata::reward {

struct RewardOptions {
  // exact:FIELD is 1 where the answer is the record's field, else 0, without the white space around
  // both. regex:PATTERN is 1 where the pattern (Python's re) is found in the answer; {FIELD} in it
  // is the record's field. json-schema:FILE is 1 where the answer is JSON of the schema as
  // --json-schema would have it sampled (structured/grammar.h). Anything else is a command.
  std::string reward = {};
  int64_t workers = 1;
  std::string timeout = "30s";  // for an answer of a command
};

OptionRow& add_reward_options(OptionTable& table, RewardOptions& options);

// The line that a command reads: a JSON object of `prompt`, `completion`, and whatever else the
// record has. The prompt of a conversation is its messages before the answer.
std::string make_line(std::string_view record, std::string_view completion);

// What answers are written in, and the tokens that end one.
struct AnswerTokens {
  const text::Tokenizer& tokenizer;
  std::vector<int32_t> ends = {};
};

class Reward {
 public:
  // `log`: the file of what a command says on stderr; empty: ours. Borrows the tokenizer. Throws
  // Error for a pattern or a schema that is none.
  Reward(const RewardOptions& options, const std::string& log, const AnswerTokens& tokens);

  // What a record, a JSON object, lacks that the rule reads; empty: nothing.
  [[nodiscard]] std::string find_fault(std::string_view record) const;
  // These four are RewardWorkers' (reward/workers.h).
  void submit(size_t id, std::string_view record, std::string_view completion);
  void run(double seconds);
  [[nodiscard]] bool is_idle() const { return !workers_ || workers_->is_idle(); }
  std::vector<Rated> take_rated();

 private:
  enum class Kind : uint8_t { kCommand, kExact, kRegex, kSchema };

  [[nodiscard]] bool fits_schema(std::string_view completion) const;
  [[nodiscard]] Rated rate_by_pattern(size_t id, std::string_view record,
                                      std::string_view completion) const;

  AnswerTokens tokens_;
  Kind kind_ = Kind::kCommand;
  std::string rule_;                            // behind the colon
  std::vector<std::string> fields_;             // that it reads
  std::optional<text::Regex> regex_;            // of a pattern without a field
  std::optional<structured::Grammar> grammar_;  // of a schema
  std::optional<RewardWorkers> workers_;        // of a command
  std::vector<Rated> rated_;
};

}  // namespace strata::reward
