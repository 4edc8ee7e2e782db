// SPDX-License-Identifier: Apache-2.0
// What a process and its child that compiles grammars send each other: frames, each a list of
// texts. Of one machine and one program, so numbers are as memory has them.
//   send_frame(fd, {"grammar", text}, deadline);  receive_frame(fd, deadline)
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace strata::structured {

using Frame = std::vector<std::string>;

enum class FrameEnd : uint8_t { kWhole, kLate, kClosed };

// `deadline`: of base/clock.h's now_seconds(), by which it has to be through; infinity: any time.
FrameEnd send_frame(int fd, const Frame& frame, double deadline);
FrameEnd receive_frame(int fd, Frame& frame, double deadline);

}  // namespace strata::structured
