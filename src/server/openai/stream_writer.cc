// SPDX-License-Identifier: Apache-2.0
#include "server/openai/stream_writer.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "base/log.h"

namespace strata::server {
namespace {

constexpr int64_t kChoicesAtOnce = 16;  // of one step, without logprobs
constexpr size_t kPieceTokens = 2048;   // with those next to them; a quarter of a MiB of JSON

size_t num_emitted(const api::RowTokens& told) {
  return told.tokens.size() + told.topk.ids.size() + told.prompt_logprobs.size() +
         told.prompt_topk.ids.size();
}

// That wait with it.
size_t bytes_of(const api::RowTokens& told) {
  return sizeof(told) + num_emitted(told) * (sizeof(int32_t) + sizeof(float));
}

}  // namespace

struct StreamWriter::Piece {
  std::vector<Told> told;
  size_t bytes = 0;
  std::string text = {};
  bool is_broken = false;
};

bool takes_long_to_write(const AnswerOrder& order) {
  return order.telling.logprobs || order.num_choices() > kChoicesAtOnce;
}

void StreamWriter::push(size_t sample, const api::RowTokens& told) {
  if (is_over_ || body_->closed()) return;
  if (!elsewhere_.run) {
    const std::string text = answer_.make_token_events(sample, told);
    if (!text.empty()) static_cast<void>(body_->offer_bytes(text));
    return;
  }
  const size_t bytes = bytes_of(told);
  if (!body_->reserve_expected(bytes)) return waiting_.clear();
  waiting_.push_back({sample, told, bytes});
  start_next_piece();
}

std::shared_ptr<StreamWriter::Piece> StreamWriter::take_next_piece() {
  auto piece = std::make_shared<Piece>();
  for (size_t tokens = 0; tokens < kPieceTokens && !waiting_.empty(); waiting_.pop_front()) {
    tokens += num_emitted(waiting_.front().tokens);
    piece->bytes += waiting_.front().bytes;
    piece->told.push_back(std::move(waiting_.front()));
  }
  return piece;
}

// Elsewhere.
void StreamWriter::make_text(Piece& piece) {
  try {
    for (const Told& told : piece.told)
      piece.text += answer_.make_token_events(told.sample, told.tokens);
  } catch (const std::exception& error) {
    piece.is_broken = true;
    log(LogLevel::kError, fmt::format("openai: a stream: {}", error.what()));
  }
}

void StreamWriter::start_next_piece() {
  if (is_making_ || waiting_.empty()) return;
  is_making_ = true;
  elsewhere_.run([self = shared_from_this(), piece = take_next_piece()] {
    self->make_text(*piece);
    self->elsewhere_.back([self, piece] { self->deliver_piece(*piece); });
  });
}

void StreamWriter::deliver_piece(Piece& piece) {
  is_making_ = false;
  if (!body_->offer_bytes(piece.text, piece.bytes)) return waiting_.clear();
  if (piece.is_broken) {
    is_over_ = true;
    waiting_.clear();
    fault_ = AnswerStream::fault_events(500, "the server failed on this request; its log says why");
  }
  start_next_piece();
  if (is_over_ && !is_making_) end_body();
}

void StreamWriter::finish() {
  is_over_ = true;
  if (!is_making_) end_body();
}

void StreamWriter::fail(int status, const std::string& message) {
  fault_ = AnswerStream::fault_events(status, message);
  finish();
}

void StreamWriter::end_body() {
  if (body_->ends()) return;
  static_cast<void>(body_->offer_bytes(fault_.empty() ? answer_.make_end_events() : fault_));
  body_->finish();
}

}  // namespace strata::server
