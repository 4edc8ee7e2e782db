#include "server/protocol/provenance.h"

#include <fmt/format.h>
#include <server/protocol/tinker.pb.h>

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace strata::server {
namespace {

namespace pb = tinker_public;

[[noreturn]] void fail(const std::string& where, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, where + ": " + what);
}

// One run of positions [begin, begin + length) that stands at [offset, offset + length) of a
// sequence's prompt or sampled tokens.
struct Run {
  std::string sequence_id;
  bool is_sampled = false;
  int64_t begin = 0, offset = 0, length = 0;
};

template <typename Spans>
std::vector<Run> tile(const Spans& spans, int64_t size, const std::string& where) {
  std::vector<Run> runs;
  int64_t next = 0;
  for (const pb::ProvenanceSpan& span : spans) {
    Run run;
    run.begin = next;
    if (span.has_sampled_tokens()) {
      const auto& s = span.sampled_tokens();
      run.sequence_id = s.sequence_id();
      run.is_sampled = true;
      run.offset = s.offset();
      run.length = s.length();
    } else if (span.has_prompt_tokens()) {
      const auto& s = span.prompt_tokens();
      run.sequence_id = s.sequence_id();
      run.offset = s.offset();
      run.length = s.length();
    } else {
      fail(where, "a span is neither prompt_tokens nor sampled_tokens");
    }
    if (run.length < 0 || run.offset < 0 || run.length > size - next) {
      fail(where, fmt::format("the spans do not tile {} positions: one has offset {} and length {}",
                              size, run.offset, run.length));
    }
    next += run.length;
    runs.push_back(std::move(run));
  }
  if (next != size) {
    fail(where, fmt::format("the spans cover {} positions, there are {}", next, size));
  }
  return runs;
}

void compare(const Run& run, const SampleRecord& record, const std::vector<int32_t>& tokens,
             const std::string& where) {
  const std::vector<int32_t>& kept = run.is_sampled ? record.tokens : record.prompt;
  if (run.offset > static_cast<int64_t>(kept.size()) ||
      run.length > static_cast<int64_t>(kept.size()) - run.offset) {
    fail(where,
         fmt::format("sequence '{}' has {} {} tokens, a span ends at {}", run.sequence_id,
                     kept.size(), run.is_sampled ? "sampled" : "prompt", run.offset + run.length));
  }
  if (!std::equal(kept.begin() + run.offset, kept.begin() + run.offset + run.length,
                  tokens.begin() + run.begin)) {
    fail(where, fmt::format("the tokens of sequence '{}' are not those recorded when it was "
                            "sampled",
                            run.sequence_id));
  }
}

}  // namespace

void apply_records(const pb::Datum& message, const FindRecord& find_record,
                   const std::string& where, api::Datum& datum) {
  if (message.model_input_spans().empty() || message.loss_fn_input_spans().empty()) {
    fail(where, "stable_reinforce needs model_input_spans and loss_fn_input_spans");
  }
  const auto size = static_cast<int64_t>(datum.tokens.size());
  const auto inputs = tile(message.model_input_spans(), size, where + ": model_input_spans");
  const auto outputs = tile(message.loss_fn_input_spans(), size, where + ": loss_fn_input_spans");
  datum.mask.assign(datum.tokens.size(), 0.0f);
  datum.logprobs.assign(datum.tokens.size(), 0.0f);
  const auto check = [&](const std::vector<Run>& runs, const std::vector<int32_t>& tokens,
                         bool is_output) {
    for (const Run& run : runs) {
      if (run.length == 0) continue;
      const std::optional<SampleRecord> record = find_record(run.sequence_id);
      if (!record) {
        fail(where, fmt::format("sequence '{}' has no record: it was not sampled by this session "
                                "with record_stability_info, or was not used for a day",
                                run.sequence_id.substr(0, 300)));
      }
      compare(run, *record, tokens, where);
      if (!is_output || !run.is_sampled) continue;
      for (int64_t i = 0; i < run.length; ++i) {
        datum.mask[run.begin + i] = 1.0f;
        datum.logprobs[run.begin + i] = record->logprobs[run.offset + i];
      }
    }
  };
  check(inputs, datum.tokens, false);
  check(outputs, datum.targets, true);
}

}  // namespace strata::server
