// SPDX-License-Identifier: Apache-2.0
// TestPostgres: a PostgreSQL server of this test's own, on a socket in a temporary folder, ended
// and removed with the object. PostgreSQL refuses to run as root, so root becomes another user for
// it.
#pragma once
#include <sys/types.h>

#include <string>

namespace strata::testing {

class TestPostgres {
 public:
  // Null when Debian's postgresql-15 is not installed (tools/install.sh test installs it).
  static TestPostgres* shared();

  [[nodiscard]] const std::string& url() const { return url_; }
  // Leaves an empty database.
  void reset();
  // Ends every connection, as a restart of the server would.
  void drop_connections();
  // Stops all its processes (SIGSTOP), or lets them go on: a database that answers nothing.
  void freeze(bool frozen);

  ~TestPostgres();

 private:
  explicit TestPostgres(const std::string& binaries);

  std::string dir_;
  std::string url_;
  pid_t server_ = -1;
};

}  // namespace strata::testing
