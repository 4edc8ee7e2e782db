// SPDX-License-Identifier: Apache-2.0
// A model that begins to train: what create_model and the create form of load_weights have in
// common. Its number, {model_seq_id}, is the client's: sent again, it is the same model.
#pragma once
#include <memory>
#include <string>

#include "server/tinker/service/service.h"
#include "text/json_body.h"

namespace strata::server {

// The session, alive, in which the body wants a model. Throws Error also where it wants an
// optimizer that is not here.
std::string read_live_session(Service& service, const Request& request, const text::Fields& body);

struct ModelStart {
  const char* type;  // of the reply
  std::string session;
  const BaseName& base;
  std::string base_name;  // as the client wrote it
  api::CreateModel create = {};
  std::shared_ptr<void> lease = {};  // of the checkpoint that it reads
};

Response start_model(Service& service, const Request& request, const text::Fields& body,
                     ModelStart start);

}  // namespace strata::server
