// SPDX-License-Identifier: Apache-2.0
// What ranks tell each other over MPI is in comm_test.cc; here MPI is a table of the test's own.
#include "backend/mpi_comm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>

#include "backend/mpi_table.h"
#include "base/error.h"

namespace strata {
namespace {

// Two ranks, of which the other says who it is, begins a message, and is never heard of again: a
// receive of data has been matched, so that MPI neither ends nor cancels it.
constexpr int kData = 0, kControl = 1;
constexpr std::string_view kHello = "elsewhere 0";
int pending = 1;  // what any operation that never ends is
int ended = 0;    // any other
bool has_said_hello = false;

const char* start(int64_t, int* rank, int* size) {
  *rank = 0;
  *size = 2;
  return nullptr;
}
void* begin_send(int, int, int, const void*, int64_t) { return &ended; }
void* begin_receive(int channel, int, int, void* data, int64_t bytes) {
  if (channel == kData) return &pending;
  std::memcpy(data, kHello.data(), static_cast<size_t>(bytes));
  return &ended;
}
bool has_ended(void* operation, const char** fault) {
  *fault = nullptr;
  return operation == &ended;
}
bool probe(int channel, int* from, int* tag, int64_t* bytes) {
  if (channel != kControl || has_said_hello) return false;
  has_said_hello = true;
  *from = 1;
  *tag = 0;
  *bytes = std::ssize(kHello);
  return true;
}

constexpr MpiTable kTable = {.version = kMpiTableVersion,
                             .start = start,
                             .highest_tag = [] { return 1 << 20; },
                             .begin_send = begin_send,
                             .begin_receive = begin_receive,
                             .poll_operation = has_ended,
                             .cancel = [](void*) {},
                             .probe = probe,
                             .abort = [](int) {},
                             .end = [] {}};

TEST(MpiComm, AReceiveEndsWhoseSenderDiedInTheMiddleOfAMessage) {
  MpiRanks ranks(/*plugin=*/"", {.silence = 0.3});  // this program is its own
  std::array<char, 8> message = {};
  try {
    ranks.run([&](Comm& comm) { comm.receive_bytes(1, 0, message.data(), std::ssize(message)); });
    FAIL() << "it was received";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("rank 1 (elsewhere) has been silent"));
  }
}

}  // namespace
}  // namespace strata

extern "C" __attribute__((visibility("default"))) const strata::MpiTable* strata_mpi_table() {
  return &strata::kTable;
}
