// Turns: pieces of work of several coroutines, one after the other, in the order in which they ask.
// Behind each the thread is everybody else's for as long as it took. I/O thread only.
#pragma once
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <list>

namespace strata::server {

class Turns {
 public:
  // A place in the line, given up with the object: at the end of the work, or of the coroutine.
  class Turn {
   public:
    Turn(Turns& turns, boost::asio::io_context& io);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    boost::asio::awaitable<void> begin();

   private:
    Turns& turns_;
    std::list<Turn*>::iterator place_;
    boost::asio::steady_timer timer_;  // cancelled when the line is this one's
    std::chrono::steady_clock::time_point begin_;
    bool has_begun_ = false;
  };

 private:
  std::list<Turn*> line_;
  std::chrono::steady_clock::time_point free_at_;
};

}  // namespace strata::server
