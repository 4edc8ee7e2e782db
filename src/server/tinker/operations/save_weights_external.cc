// SPDX-License-Identifier: Apache-2.0
// POST save_weights_external: a checkpoint (save_checkpoint.h) in PEFT's form to take away,
// encrypted with age for {age_encryption_recipients} where they are given.
#include <fmt/format.h>

#include <set>
#include <string>
#include <vector>

#include "server/store/checkpoints/age.h"
#include "server/tinker/operations/operations.h"
#include "server/tinker/operations/save_checkpoint.h"

namespace strata::server {
namespace {

constexpr size_t kMaxRecipients = 16;  // each costs a key agreement for every file

std::vector<std::string> read_recipients(const text::Fields& body) {
  std::vector<std::string> keys;
  if (!body.has("age_encryption_recipients")) return keys;
  const std::vector<std::string> texts = body.strings("age_encryption_recipients");
  const std::set<std::string> distinct(texts.begin(), texts.end());
  if (distinct.size() > kMaxRecipients) {
    body.fail("age_encryption_recipients",
              fmt::format("has {} recipients, the limit is {}", distinct.size(), kMaxRecipients));
  }
  for (const std::string& text : distinct) keys.push_back(parse_age_recipient(text));
  return keys;
}

Response save_weights_external(Service& service, const Request& request) {
  const text::JsonBody json(request.body, "save_weights_external");
  return handle_numbered_call(service, request, json.root(), [&](const NumberedCall& call) {
    CheckpointSave save;
    save.age_recipients = read_recipients(call.body);
    return save_checkpoint(service, call, "save_weights_external", CheckpointKind::kExternal, save);
  });
}

}  // namespace

constinit const Operation kSaveWeightsExternal = {.path = "save_weights_external",
                                                  .run = save_weights_external};

}  // namespace strata::server
