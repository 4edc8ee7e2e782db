// SPDX-License-Identifier: Apache-2.0
#include "data/example_store.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "base/check.h"

namespace strata::data {
namespace {

constexpr uint32_t kTrained = uint32_t{1} << 31;
constexpr size_t kPiece = 64 << 10;  // tokens that are written at once
constexpr int64_t kTokenBytes = sizeof(uint32_t);

Example unpack_tokens(std::span<const uint32_t> packed) {
  Example example;
  example.tokens.reserve(packed.size() - 1);
  example.targets.reserve(packed.size() - 1);
  example.weights.reserve(packed.size() - 1);
  for (size_t t = 0; t + 1 < packed.size(); ++t) {
    example.tokens.push_back(static_cast<int32_t>(packed[t] & ~kTrained));
    example.targets.push_back(static_cast<int32_t>(packed[t + 1] & ~kTrained));
    const bool is_trained = (packed[t + 1] & kTrained) != 0;
    example.weights.push_back(is_trained ? 1.0f : 0.0f);
    example.num_trained += is_trained ? 1 : 0;
  }
  return example;
}

}  // namespace

int64_t ExampleStore::add(const Example& example) {
  CHECK(!has_pairs());
  pack(example);
  return add_packed(std::ssize(example.tokens), example.num_trained);
}

int64_t ExampleStore::add_pair(const Example& chosen, const Example& rejected) {
  CHECK(std::ssize(chosen_lengths_) == size());
  chosen_lengths_.push_back(static_cast<int32_t>(chosen.tokens.size()));
  pack(chosen);
  pack(rejected);
  return add_packed(std::ssize(chosen.tokens) + std::ssize(rejected.tokens),
                    chosen.num_trained + rejected.num_trained);
}

// What was packed, as the next entry.
int64_t ExampleStore::add_packed(int64_t length, int64_t num_trained) {
  update_highest_token();
  entries_.push_back(
      {num_tokens_, static_cast<int32_t>(length), static_cast<int32_t>(num_trained)});
  num_tokens_ += std::ssize(packed_);
  store_packed();
  packed_.clear();
  return size() - 1;
}

void ExampleStore::pack(const Example& example) {
  CHECK(!example.tokens.empty() && example.tokens.size() == example.targets.size());
  packed_.push_back(static_cast<uint32_t>(example.tokens.front()));
  for (size_t t = 0; t < example.targets.size(); ++t) {
    const uint32_t trained = example.weights[t] != 0.0f ? kTrained : 0;
    packed_.push_back(static_cast<uint32_t>(example.targets[t]) | trained);
  }
}

void ExampleStore::update_highest_token() {
  for (const uint32_t token : packed_) {
    const auto id = static_cast<int32_t>(token & ~kTrained);
    if (id > highest_token_) highest_token_ = id, example_of_highest_ = size();
  }
}

void ExampleStore::store_packed() {
  if (!file_ && num_tokens_ * kTokenBytes <= in_memory_) {
    tokens_.insert(tokens_.end(), packed_.begin(), packed_.end());
    return;
  }
  if (!file_) file_ = std::make_unique<TemporaryFile>();
  waiting_.insert(waiting_.end(), packed_.begin(), packed_.end());
  if (waiting_.size() < kPiece) return;
  file_->append(std::as_bytes(std::span(waiting_)));
  waiting_.clear();
}

void ExampleStore::seal() {
  if (!waiting_.empty()) file_->append(std::as_bytes(std::span(waiting_)));
  waiting_ = {};
  packed_ = {};
  tokens_.shrink_to_fit();
  entries_.shrink_to_fit();
  chosen_lengths_.shrink_to_fit();
}

std::vector<uint32_t> ExampleStore::read_packed(const Entry& found) const {
  std::vector<uint32_t> packed(static_cast<size_t>(found.length) + (has_pairs() ? 2 : 1));
  const int64_t in_memory = std::ssize(tokens_);
  if (found.offset < in_memory) {
    std::copy_n(tokens_.begin() + found.offset, packed.size(), packed.begin());
  } else {
    file_->read_at((found.offset - in_memory) * kTokenBytes,
                   std::as_writable_bytes(std::span(packed)));
  }
  return packed;
}

Example ExampleStore::read(int64_t index) const {
  CHECK(waiting_.empty() && !has_pairs());
  return unpack_tokens(read_packed(entry(index)));
}

ExamplePair ExampleStore::read_pair(int64_t index) const {
  CHECK(waiting_.empty() && has_pairs());
  const std::vector<uint32_t> packed = read_packed(entry(index));
  const auto behind_chosen =
      static_cast<size_t>(chosen_lengths_[static_cast<size_t>(index)]) + size_t{1};
  return {unpack_tokens(std::span(packed).first(behind_chosen)),
          unpack_tokens(std::span(packed).subspan(behind_chosen))};
}

int64_t ExampleStore::memory_bytes() const {
  return size() * static_cast<int64_t>(sizeof(Entry)) +
         std::ssize(chosen_lengths_) * static_cast<int64_t>(sizeof(int32_t)) +
         std::ssize(tokens_) * kTokenBytes;
}

Examples::Examples(std::shared_ptr<const ExampleStore> store) : store_(std::move(store)) {
  order_.resize(static_cast<size_t>(store_->size()));
  std::iota(order_.begin(), order_.end(), int64_t{0});
}

std::vector<int64_t> Examples::lengths() const {
  std::vector<int64_t> lengths;
  lengths.reserve(order_.size());
  for (const int64_t i : order_) lengths.push_back(store_->length(i));
  return lengths;
}

std::vector<int64_t> Examples::lengths_of_answers() const {
  std::vector<int64_t> lengths;
  for (const int64_t i : order_) {
    lengths.push_back(store_->length_of_chosen(i));
    lengths.push_back(store_->length(i) - lengths.back());
  }
  return lengths;
}

int64_t Examples::num_tokens() const {
  return std::accumulate(order_.begin(), order_.end(), int64_t{0},
                         [&](int64_t sum, int64_t i) { return sum + store_->length(i); });
}

int64_t Examples::num_trained() const {
  return std::accumulate(order_.begin(), order_.end(), int64_t{0},
                         [&](int64_t sum, int64_t i) { return sum + store_->num_trained(i); });
}

}  // namespace strata::data
