// SPDX-License-Identifier: Apache-2.0
#include "server/http/send_response.h"

#include "server/http/write_response.h"
#include "server/http/write_stream.h"

namespace strata::server {
namespace {

// Of a response that became a refusal here, where there is no space for it.
void put_in_form(const HttpOptions& options, const Answered& of, Response& response) {
  if (options.put_in_form) options.put_in_form(of.path, response);
}

}  // namespace

boost::asio::awaitable<bool> send_response(Outgoing to, const Answered& of, Response& response) {
  const bool head_only = of.method == "HEAD";
  const int busy_status = of.method == "POST" ? 429 : 503;
  const SharedLimit& limit = to.options.responses;
  const int made = response.status;
  if (response.stream) hold_stream(limit, of.tenant, busy_status, response);
  if (response.stream) {
    const bool keep = of.keep_alive && !of.is_http10;
    const StreamedTo how = {of.owner, of.buffer, !of.is_http10, head_only, keep};
    co_return co_await write_stream(to, how, response) && keep;
  }
  const SharedLimit::Share sending = response.file
                                         ? hold_download(to.options, head_only, response)
                                         : hold_response(limit, of.tenant, busy_status, response);
  if (response.status != made) put_in_form(to.options, of, response);
  co_return co_await write_response(to, response, head_only, of.keep_alive) && of.keep_alive;
}

}  // namespace strata::server
