// SPDX-License-Identifier: Apache-2.0
// StreamWriter: the events of a streamed answer, from its rows' tokens to the body of its response,
// in order. Where their JSON takes long (logprobs, many choices) it is made on another thread, a
// piece at a time; tokens that wait for that count as bytes of the body. I/O thread only.
//   auto writer = std::make_shared<StreamWriter>(std::move(answer), elsewhere);
//   writer->push(0, row_tokens); ... writer->note_ended(output); writer->finish();
#pragma once
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "api/event.h"
#include "server/http/body_stream.h"
#include "server/openai/answer_json.h"

namespace strata::server {

// Runs a job on another thread, and what follows it on the I/O thread. Empty: at once.
struct Elsewhere {
  std::function<void(std::function<void()>)> run = {};
  std::function<void(std::function<void()>)> back = {};
};

// Whether the events of such an answer take long to make.
bool takes_long_to_write(const AnswerOrder& order);

class StreamWriter : public std::enable_shared_from_this<StreamWriter> {
 public:
  StreamWriter(AnswerStream answer, Elsewhere elsewhere)
      : answer_(std::move(answer)), elsewhere_(std::move(elsewhere)) {}

  [[nodiscard]] const std::shared_ptr<BodyStream>& body() const { return body_; }
  // Writes what a row of the order's sample told. A reader who is too slow for it loses the body,
  // which says so (BodyStream::on_close).
  void push(size_t sample, const api::RowTokens& told);
  void note_ended(const api::SampleOutput& output) { answer_.note_ended(output); }
  // Nothing follows; behind what was told comes the end, or why there is none.
  void finish();
  void fail(int status, const std::string& message);

 private:
  struct Told {
    size_t sample = 0;
    api::RowTokens tokens;
    size_t bytes = 0;
  };
  struct Piece;
  std::shared_ptr<Piece> take_next_piece();
  void start_next_piece();
  void make_text(Piece& piece);
  void deliver_piece(Piece& piece);
  void end_body();

  AnswerStream answer_;  // but for note_ended() the one job's that is under way
  const Elsewhere elsewhere_;
  const std::shared_ptr<BodyStream> body_ = std::make_shared<BodyStream>();
  std::deque<Told> waiting_;
  bool is_making_ = false;
  bool is_over_ = false;  // nothing more is told
  std::string fault_;     // what it ends with; empty: its own end
};

}  // namespace strata::server
