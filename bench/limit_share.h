// SPDX-License-Identifier: Apache-2.0
// Measures work as a share of a limit of the machine that is probed before and after every
// repetition on the same threads. A repetition in which other processes used the cores is thrown
// away; where all were, the last one stands and `noisy` says so.
#pragma once
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>
#include <vector>

namespace strata {

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// CPU seconds that others used so far: all of the machine (or stolen from it) less this process.
inline double others_busy_seconds() {
  std::ifstream stat("/proc/stat");
  std::string cpu;
  double user = 0, nice = 0, system = 0, idle = 0, wait = 0, irq = 0, softirq = 0, steal = 0;
  stat >> cpu >> user >> nice >> system >> idle >> wait >> irq >> softirq >> steal;
  const double ticks = user + nice + system + irq + softirq + steal;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return ticks / static_cast<double>(sysconf(_SC_CLK_TCK)) - seconds(usage.ru_utime) -
         seconds(usage.ru_stime);
}

struct LimitShare {
  double rate = 0;   // median, of amount a second
  double share = 0;  // median of the repetitions' rate / limit
  int noisy = 0;     // repetitions thrown away, or kept for want of better ones
};

// `work` does `amount`; `limit` returns the limit as amount a second.
template <typename Limit, typename Work>
LimitShare measure_share(double amount, int reps, Limit limit, Work work) {
  constexpr double kSeconds = 0.1;  // of a repetition
  work();
  const auto start = std::chrono::steady_clock::now();
  work();
  const int calls =
      static_cast<int>(std::clamp(kSeconds / (seconds_since(start) + 1e-9), 1.0, 1e5));
  std::vector<double> shares;
  std::vector<double> rates;
  LimitShare result;
  double before = limit();
  for (int rep = 0; rep < reps || (rates.empty() && rep < 4 * reps); ++rep) {
    const double others = others_busy_seconds();
    const auto begin = std::chrono::steady_clock::now();
    for (int call = 0; call < calls; ++call) work();
    const double rate = amount * calls / seconds_since(begin);
    const double after = limit();
    // More than 3 % of the time and two ticks of the clock that counts it.
    const double allowed =
        0.03 * seconds_since(begin) + 2.0 / static_cast<double>(sysconf(_SC_CLK_TCK));
    const bool spoilt = others_busy_seconds() - others > allowed;
    result.noisy += spoilt ? 1 : 0;
    if (!spoilt || (rates.empty() && rep + 1 == 4 * reps)) {
      rates.push_back(rate);
      shares.push_back(rate / (0.5 * (before + after)));
    }
    before = after;
  }
  result.rate = median(rates);
  result.share = median(shares);
  return result;
}

}  // namespace strata
