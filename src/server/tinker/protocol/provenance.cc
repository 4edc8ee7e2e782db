// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/protocol/provenance.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "server/tinker/protocol/tensor.h"

namespace strata::server {
namespace {

constexpr int64_t kSpansPerToken = 4;  // a span is of one token or more, but for a few empty ones
constexpr size_t kMaxSequenceId = 255;

// One run of positions [begin, begin + length) that stands at [offset, offset + length) of a
// sequence's prompt or sampled tokens. Borrows the name from the message.
struct Run {
  std::string_view sequence_id;
  bool is_sampled = false;
  int64_t begin = 0, offset = 0, length = 0;
};

// Checks a span that begins at position `begin` of `size`.
void check_span(const SpanMessage& span, int64_t begin, int64_t size, const std::string& where) {
  if (span.kind == SpanMessage::Kind::kNone) {
    fail_data(where, "a span is neither prompt_tokens nor sampled_tokens");
  }
  if (span.length < 0 || span.offset < 0 || span.length > size - begin) {
    fail_data(where,
              fmt::format("the spans do not tile {} positions: one has offset {} and length {}",
                          size, span.offset, span.length));
  }
  if (span.sequence_id.size() > kMaxSequenceId) {
    fail_data(where, fmt::format("a sequence_id has {} bytes, the limit is {}",
                                 span.sequence_id.size(), kMaxSequenceId));
  }
}

std::vector<Run> read_runs(const std::vector<SpanMessage>& spans, int64_t size,
                           const std::string& where) {
  if (std::ssize(spans) > kSpansPerToken * size) {
    fail_data(where, fmt::format("has {} spans for {} positions, the limit is {} a position",
                                 spans.size(), size, kSpansPerToken));
  }
  std::vector<Run> runs;
  int64_t next = 0;
  for (const SpanMessage& span : spans) {
    check_span(span, next, size, where);
    runs.push_back({.sequence_id = span.sequence_id,
                    .is_sampled = span.kind == SpanMessage::Kind::kSampled,
                    .begin = next,
                    .offset = span.offset,
                    .length = span.length});
    next += span.length;
  }
  if (next != size)
    fail_data(where, fmt::format("the spans cover {} positions, there are {}", next, size));
  return runs;
}

void check_matches_record(const Run& run, const SampleRecord& record,
                          const std::vector<int32_t>& tokens, const std::string& where) {
  const std::vector<int32_t>& kept = run.is_sampled ? record.tokens : record.prompt;
  if (run.offset > static_cast<int64_t>(kept.size()) ||
      run.length > static_cast<int64_t>(kept.size()) - run.offset) {
    const uint64_t end = static_cast<uint64_t>(run.offset) + static_cast<uint64_t>(run.length);
    fail_data(where,
              fmt::format("sequence '{}' has {} {} tokens, a span ends at {}", run.sequence_id,
                          kept.size(), run.is_sampled ? "sampled" : "prompt", end));
  }
  if (!std::equal(kept.begin() + run.offset, kept.begin() + run.offset + run.length,
                  tokens.begin() + run.begin)) {
    fail_data(where, fmt::format("the tokens of sequence '{}' are not those recorded when it was "
                                 "sampled",
                                 run.sequence_id));
  }
}

int64_t bytes_of(const SampleRecord& record) {
  const size_t values = record.prompt.size() + record.tokens.size() + record.logprobs.size();
  return static_cast<int64_t>(values * sizeof(int32_t));
}

}  // namespace

const SampleRecord& SampleRecords::require_record(std::string_view sequence,
                                                  const std::string& where) {
  const auto known = records_.find(sequence);
  if (known != records_.end()) return known->second;
  std::optional<SampleRecord> record = find_(std::string(sequence));
  if (!record) {
    fail_data(where,
              fmt::format("sequence '{}' has no record: it was not sampled by this session with "
                          "record_stability_info, or was not used for a day",
                          sequence));
  }
  left_ -= bytes_of(*record);
  if (left_ < 0) {
    fail_data(where,
              "the records of the sequences that the request names take more than --max-body; "
              "send the data in several requests");
  }
  return records_.emplace(sequence, std::move(*record)).first->second;
}

// Throws Error where the tokens of the run are not those of its record.
static const SampleRecord& load_matching_record(const Run& run, SampleRecords& records,
                                                const std::vector<int32_t>& tokens,
                                                const std::string& where) {
  const SampleRecord& record = records.require_record(run.sequence_id, where);
  check_matches_record(run, record, tokens, where);
  return record;
}

void fill_inputs_from_records(const DatumMessage& message, SampleRecords& records,
                              const std::string& where, api::Datum& datum) {
  if (message.model_input_spans.empty() || message.loss_input_spans.empty())
    fail_data(where, "stable_reinforce needs model_input_spans and loss_fn_input_spans");
  const auto size = static_cast<int64_t>(datum.tokens.size());
  const auto inputs = read_runs(message.model_input_spans, size, where + ": model_input_spans");
  const auto outputs = read_runs(message.loss_input_spans, size, where + ": loss_fn_input_spans");
  std::vector<float>& mask = datum.inputs[api::LossInput::kRecordedMask];
  std::vector<float>& logprobs = datum.inputs[api::LossInput::kLogprobs];
  mask.assign(datum.tokens.size(), 0.0f);
  logprobs.assign(datum.tokens.size(), 0.0f);
  for (const Run& run : inputs) {
    if (run.length > 0) load_matching_record(run, records, datum.tokens, where);
  }
  for (const Run& run : outputs) {
    if (run.length == 0) continue;
    const SampleRecord& record = load_matching_record(run, records, datum.targets, where);
    if (!run.is_sampled) continue;
    std::fill_n(mask.begin() + run.begin, run.length, 1.0f);
    std::copy_n(record.logprobs.begin() + run.offset, run.length, logprobs.begin() + run.begin);
  }
}

}  // namespace strata::server
