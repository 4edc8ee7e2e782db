// SPDX-License-Identifier: Apache-2.0
// Turns: pieces of work of several coroutines, one after the other: tenants take turns, and those
// of one tenant come in the order in which they ask. Behind each the thread is everybody else's for
// as long as it took. I/O thread only.
#pragma once
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <list>
#include <map>
#include <string>

namespace strata::server {

class Turns {
 public:
  // A place in the line, given up with the object: at the end of the work, or of the coroutine.
  class Turn {
   public:
    Turn(Turns& turns, boost::asio::io_context& io, const std::string& tenant);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    boost::asio::awaitable<void> begin();

   private:
    friend class Turns;
    Turns& turns_;
    std::string tenant_;
    std::list<Turn*>::iterator place_;
    boost::asio::steady_timer timer_;  // cancelled when it is this one's turn
    std::chrono::steady_clock::time_point begin_;
    bool has_begun_ = false;
  };

 private:
  struct Line {
    std::string tenant;
    std::list<Turn*> waiting;  // never empty
  };

  std::list<Turn*>::iterator enter(Turn* turn, const std::string& tenant);
  void leave(const std::string& tenant, std::list<Turn*>::iterator place);
  [[nodiscard]] Turn* first() const {
    return lines_.empty() ? nullptr : lines_.front().waiting.front();
  }

  std::list<Line> lines_;  // the first one's first has its turn
  std::map<std::string, std::list<Line>::iterator> line_of_;
  std::chrono::steady_clock::time_point free_at_;
};

}  // namespace strata::server
