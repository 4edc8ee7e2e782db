#include "server/protocol/forward_backward.h"

#include <gtest/gtest.h>

#include "tests/base/temp_dir.h"

namespace strata::server {
namespace {

// model_id (field 1), a string, must be UTF-8.
TEST(ForwardBackwardBody, AStringThatIsNotUtf8IsRefusedAndToldToNobodyElse) {
  const std::string body("\x0A\x04\xFF\xFE\xFD\xFC", 6);
  ::testing::internal::CaptureStderr();
  const std::string error =
      strata::testing::error_of([&] { const ForwardBackwardBody read(body, PassForm::kBinary); });
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(error, "forward_backward: the body is not a ForwardBackwardRequest message");
}

}  // namespace
}  // namespace strata::server
