// SPDX-License-Identifier: Apache-2.0
// ArchiveBudget: the archives that are below tmp, and whose space they take. For space the tenant's
// own go first, those first that nobody read for longest; then those of the tenant that has the
// most, if that is more than this one asks for, and if nobody read them for a while: who downloads
// in pieces keeps what it downloads. What is still being packed keeps its space. Any thread.
#pragma once
#include <map>
#include <string>

#include "base/mutex.h"
#include "base/shared_limit.h"

namespace strata::server {

class ArchiveBudget {
 public:
  static constexpr double kIdle = 60;  // seconds

  explicit ArchiveBudget(SharedLimit limit) : limit_(std::move(limit)) {}

  // Space for a file that is about to be packed; files that had to go are removed. False: none.
  [[nodiscard]] bool take_evicting(const std::string& path, const std::string& tenant,
                                   int64_t bytes, double now);
  // Its packing is over: a file that is there may go from now on, one that is not takes no space.
  void finish_packing(const std::string& path);
  // Somebody reads it.
  void touch(const std::string& path, double now);
  // The file is gone.
  void drop(const std::string& path);
  // Removes those that nobody read for so many seconds.
  void remove_idle(double now, double seconds);

  // What one may have at most.
  [[nodiscard]] int64_t most() const { return limit_.most(); }
  [[nodiscard]] int64_t limit() const { return limit_.limit(); }

 private:
  struct Archive {
    std::string tenant;
    SharedLimit::Share share;
    double read = 0;  // when, last
    bool is_packed = false;
  };
  using Archives = std::map<std::string, Archive>;
  Archives::iterator next_to_evict(const std::string& tenant, int64_t bytes, double now)
      REQUIRES(mutex_);
  // The tenant that has the most, if that is more; or null.
  const std::string* largest_holder_above(int64_t bytes) REQUIRES(mutex_);
  Archives::iterator least_recently_read_of(const std::string& tenant) REQUIRES(mutex_);

  Mutex mutex_;
  SharedLimit limit_;
  Archives archives_ GUARDED_BY(mutex_);  // by path
};

}  // namespace strata::server
