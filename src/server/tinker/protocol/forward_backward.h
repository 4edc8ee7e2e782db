// SPDX-License-Identifier: Apache-2.0
// The body of forward_backward and forward, in two steps: what cannot be parsed is refused at
// submission; every fault of the data is found by build() and told through the future, or a client
// that sends chunks in parallel would hang. Binary and JSON bodies of equal content give equal
// commands, hence equal fingerprints.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "api/command.h"
#include "api/work.h"
#include "base/hash.h"
#include "server/tinker/protocol/data_message.h"
#include "text/json_body.h"
#include "text/parsed_budget.h"

namespace strata::server {

// What was recorded when a sequence was sampled, for stable_reinforce.
struct SampleRecord {
  std::vector<int32_t> prompt;
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;  // of the tokens
};

// The record of a sequence of this session, or nothing.
using FindRecord = std::function<std::optional<SampleRecord>(const std::string& sequence_id)>;

// What the data of one request may hold, of whatever model; all below 2^31.
struct DataLimits {
  int64_t elements = 0;      // of all loss inputs together, in dense form
  int64_t record_bytes = 0;  // of the sequences that stable_reinforce names
};

enum class DataForm : uint8_t {
  kBinary,      // a ForwardBackwardRequest
  kJson,        // its data under forward_backward_input
  kJsonForward  // POST forward: under forward_input
};

class ForwardBackwardBody {
 public:
  // Borrows the bytes until build(). Throws Error for bytes that are no such message, and for JSON
  // without model_id and seq_id. What it takes when read is taken on top of `share`, where that is
  // not null: Busy when there is none now.
  ForwardBackwardBody(std::string_view bytes, DataForm form, const Charge* request = nullptr);
  ForwardBackwardBody(const ForwardBackwardBody&) = delete;
  ForwardBackwardBody& operator=(const ForwardBackwardBody&) = delete;

  [[nodiscard]] std::string_view model_id() const { return message_.model_id; }
  [[nodiscard]] int64_t seq_id() const { return message_.seq_id; }

  // Throws Error naming the datum and the input at fault. To be called once.
  [[nodiscard]] api::ForwardBackward build(const DataLimits& limits, const FindRecord& find_record);

 private:
  void read_binary(std::string_view bytes);
  void read_json(std::string_view text, const Charge* request);

  DataForm form_;
  std::optional<text::ParsedBudget> parsed_;  // of message_
  std::optional<std::string> fault_;          // of the data, seen before they were read
  DataMessage message_;
  std::unique_ptr<text::JsonBody> json_;  // until build() has moved it into message_
};

// What depends on the model: no datum is longer than its context, nor a trained one than the memory
// for a pass. Nothing, or the fault, naming the datum.
std::optional<std::string> find_length_fault(const api::ForwardBackward& command,
                                             const api::BaseInfo& base);

// A hash of everything that makes two commands the same request; the caller leaves out seeds that
// the server drew.
uint64_t fingerprint_of(const api::ForwardBackward& command);

}  // namespace strata::server
