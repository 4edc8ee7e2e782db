// SPDX-License-Identifier: Apache-2.0
// Provenance of a datum of stable_reinforce: spans that say of which sampled sequence each position
// is, checked against what was recorded when it was sampled.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "api/command.h"
#include "server/tinker/protocol/forward_backward.h"

namespace strata::server {

// The records that one request names: each is looked up once. At most `max_bytes` are kept.
class SampleRecords {
 public:
  SampleRecords(const FindRecord& find, int64_t max_bytes) : find_(find), left_(max_bytes) {}
  // Throws Error when there is none, or when they are too many.
  const SampleRecord& require_record(std::string_view sequence, const std::string& where);

 private:
  const FindRecord& find_;
  int64_t left_;
  std::map<std::string, SampleRecord, std::less<>> records_;
};

// Puts the recorded logprobs in place of the client's, and the mask of sampled positions. Throws
// Error where the spans do not tile the datum or differ from the records.
void fill_inputs_from_records(const DatumMessage& message, SampleRecords& records,
                              const std::string& where, api::Datum& datum);

}  // namespace strata::server
