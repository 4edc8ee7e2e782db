// SPDX-License-Identifier: Apache-2.0
// What ranks of processes tell each other is in comm_test.cc, as threads and as processes.
#include "backend/process_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/mutex.h"

namespace strata {
namespace {

// Of a process whose other threads end while the others are told of the fault.
class SlowToTell : public LoneComm {
 public:
  void announce_failure(ErrorCode, const std::string& what) override {
    if (what == "the disk is full") std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const MutexLock lock(mutex_);
    told_.push_back(what);
  }
  std::vector<std::string> told() {
    const MutexLock lock(mutex_);
    return told_;
  }

 private:
  Mutex mutex_;
  std::vector<std::string> told_ GUARDED_BY(mutex_);
};

TEST(ProcessRanks, TellOtherProcessesTheFaultAndNotWhatItStopped) {
  SlowToTell processes;
  EXPECT_THROW(run_ranks(processes, {.threads = 2},
                         [](Comm& comm) {
                           if (comm.rank() == 0) throw Error(ErrorCode::kIo, "the disk is full");
                           comm.receive_bytes(0, 0, nullptr, 0);  // never sent
                         }),
               Error);
  EXPECT_THAT(processes.told(), testing::ElementsAre("the disk is full"));
}

}  // namespace
}  // namespace strata
