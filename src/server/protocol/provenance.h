// Provenance of a datum of stable_reinforce: spans that say of which sampled sequence each position
// is, checked against what was recorded when it was sampled.
#pragma once
#include <string>

#include "api/command.h"
#include "server/protocol/forward_backward.h"

namespace tinker_public {
class Datum;
}  // namespace tinker_public

namespace strata::server {

// Puts the recorded logprobs in place of the client's, and the mask of sampled positions. Throws
// Error where the spans do not tile the datum or differ from the records.
void apply_records(const tinker_public::Datum& message, const FindRecord& find_record,
                   const std::string& where, api::Datum& datum);

}  // namespace strata::server
