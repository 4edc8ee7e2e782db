// The body of forward_backward, in two steps: what cannot be parsed is refused at submission; every
// fault of the data is found by build() and told through the future, or a client that sends chunks
// in parallel would hang.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "api/command.h"

namespace tinker_public {
class ForwardBackwardRequest;
}  // namespace tinker_public

namespace strata::server {

// What was recorded when a sequence was sampled, for stable_reinforce.
struct SampleRecord {
  std::vector<int32_t> prompt;
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;  // of the tokens
};
std::string pack_record(const SampleRecord& record);  // hexadecimal text
std::optional<SampleRecord> unpack_record(std::string_view text);

// The record of a sequence of this session, or nothing.
using FindRecord = std::function<std::optional<SampleRecord>(const std::string& sequence_id)>;

class ForwardBackwardBody {
 public:
  // Throws Error for bytes that are no such message.
  explicit ForwardBackwardBody(std::string_view bytes);
  ~ForwardBackwardBody();
  ForwardBackwardBody(const ForwardBackwardBody&) = delete;
  ForwardBackwardBody& operator=(const ForwardBackwardBody&) = delete;

  [[nodiscard]] const std::string& model_id() const;
  [[nodiscard]] int64_t seq_id() const;
  [[nodiscard]] const std::string& loss_fn() const;

  // Throws Error naming the datum and the input at fault.
  [[nodiscard]] api::ForwardBackward build(const FindRecord& find_record) const;

 private:
  std::unique_ptr<tinker_public::ForwardBackwardRequest> message_;
};

// Of everything that makes two commands the same request; seeds the server drew are left out by the
// caller.
uint64_t fingerprint_of(const api::ForwardBackward& command);
uint64_t fingerprint_of(std::string_view bytes);

}  // namespace strata::server
