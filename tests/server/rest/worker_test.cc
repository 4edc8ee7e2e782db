#include "server/rest/worker.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace strata::server {
namespace {

TEST(Worker, AJobThatThrowsEndsNoOther) {
  Worker worker;
  int done = 0;
  worker.post([&] { ++done; });
  worker.post([] { throw std::runtime_error("a folder went away"); });
  worker.post([] { throw 5; });
  worker.post([&] { ++done; });
  worker.stop();
  worker.post([] { throw std::runtime_error("after the end"); });
  EXPECT_EQ(done, 2);
}

}  // namespace
}  // namespace strata::server
