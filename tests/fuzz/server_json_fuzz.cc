// SPDX-License-Identifier: Apache-2.0
// A JSON body of the server: any bytes are read by every kind of field, as a sample request and as
// a body of forward_backward, or are an Error whose message is short and names the field. What is
// quoted again parses again.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "api/work.h"
#include "base/error.h"
#include "server/http/message.h"
#include "server/tinker/operations/asample.h"
#include "server/tinker/protocol/forward_backward.h"
#include "tests/fuzz/pass_check.h"
#include "text/json_body.h"

namespace {

using strata::fuzz::require;
using strata::server::DataForm;
using strata::text::Fields;
using strata::text::JsonBody;

constexpr size_t kLongestMessage = 2000;

template <typename Read>
void attempt(Read read) {
  try {
    read();
  } catch (const strata::Error& error) {
    require(!std::string_view(error.what()).empty());
    require(std::string_view(error.what()).size() < kLongestMessage);
  }
}

void read_fields(const Fields& root) {
  for (const char* name : {"a", "prompt", "sampling_params", "tags", "seed", "user_metadata"}) {
    attempt([&] { (void)root.maybe_string(name); });
    attempt([&] { (void)root.integer(name, -5, 1'000'000); });
    attempt([&] { (void)root.maybe_int64_bits(name); });
    attempt([&] { (void)root.number(name); });
    attempt([&] { (void)root.boolean_or(name, true); });
    attempt([&] { (void)root.strings(name); });
    attempt([&] { (void)root.integers(name); });
    attempt([&] { (void)root.floats(name); });
    attempt([&] { root.each_object(name, [](const Fields& item) { (void)item.has("a"); }); });
    attempt([&] { root.object(name).each_name([](const std::string&) {}); });
    attempt([&] {
      const auto text = root.maybe_object_text(name, 64, 16 << 10);
      if (!text) return;
      require(text->size() <= 16 << 10);
      const JsonBody again(*text, "again");
      (void)again.root();
    });
  }
}

void read_pass(std::string_view text, DataForm form) {
  attempt([&] {
    strata::server::ForwardBackwardBody body(text, form);
    const auto command = body.build({.elements = 1 << 16, .record_bytes = 1 << 16},
                                    [](const std::string&) { return std::nullopt; });
    require(command.forward_only == (form == DataForm::kJsonForward));
    strata::fuzz::check_pass(command);
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  attempt([&] {
    const JsonBody body(text, "fuzz");
    read_fields(body.root());
    strata::api::BaseInfo base;
    base.vocab_size = 100;
    base.max_context = 64;
    base.end_tokens = {0};
    attempt([&] {
      auto order = strata::server::read_sample(body.root(), 1);
      strata::server::resolve_sample(base, order);
      require(order.command.num_samples >= 1 && order.command.max_tokens >= 0);
      require(!order.command.prompt.empty());
    });
  });
  read_pass(text, DataForm::kJson);
  // The whole input as what the envelope holds: the fuzzer need not find the envelope.
  read_pass(R"({"model_id":"m","seq_id":1,"forward_input":)" + std::string(text) + "}",
            DataForm::kJsonForward);
  const JsonBody quoted("{\"a\":" + strata::server::json_quoted(text.substr(0, 4096)) + "}",
                        "quoted");
  (void)quoted.root().string("a");
  return 0;
}
