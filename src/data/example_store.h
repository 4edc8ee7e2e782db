// SPDX-License-Identifier: Apache-2.0
// ExampleStore: examples that were read, packed: 4 bytes a token and 16 an example. Up to
// kInMemory bytes of tokens lie in memory, the rest in a temporary file, so that a set of any size
// can be trained on. Examples: a list of them in some order, which may have one more than once.
// One thread adds; once nobody does, any thread may read.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "data/example.h"
#include "data/temporary_file.h"

namespace strata::data {

struct ExamplePair {
  Example chosen, rejected;
};

class ExampleStore {
 public:
  static constexpr int64_t kInMemory = int64_t{32} << 20;

  explicit ExampleStore(int64_t in_memory = kInMemory) : in_memory_(in_memory) {}
  // Returns its number. A token is 0 or more.
  int64_t add(const Example& example);
  // A store has pairs, or examples that are alone. A pair's length is that of both answers.
  int64_t add_pair(const Example& chosen, const Example& rejected);
  // Behind the last one that is added, and before the first is read.
  void seal();
  [[nodiscard]] Example read(int64_t index) const;  // that is alone
  [[nodiscard]] ExamplePair read_pair(int64_t index) const;
  [[nodiscard]] bool has_pairs() const { return !chosen_lengths_.empty(); }
  [[nodiscard]] int64_t size() const { return std::ssize(entries_); }
  [[nodiscard]] int64_t length(int64_t index) const { return entry(index).length; }
  [[nodiscard]] int64_t length_of_chosen(int64_t index) const {
    return chosen_lengths_[static_cast<size_t>(index)];
  }
  [[nodiscard]] int64_t num_trained(int64_t index) const { return entry(index).num_trained; }
  // -1 of none; and the first example that has it.
  [[nodiscard]] int32_t highest_token() const { return highest_token_; }
  [[nodiscard]] int64_t example_of_highest_token() const { return example_of_highest_; }
  [[nodiscard]] int64_t memory_bytes() const;

 private:
  struct Entry {
    int64_t offset;  // in tokens; an example has one more than its length, a pair two
    int32_t length;
    int32_t num_trained;
  };
  [[nodiscard]] const Entry& entry(int64_t index) const {
    return entries_[static_cast<size_t>(index)];
  }
  int64_t add_packed(int64_t length, int64_t num_trained);
  void pack(const Example& example);  // behind packed_
  void update_highest_token();        // of packed_, which is the next example
  void store_packed();                // in memory, or in the file once it is full
  [[nodiscard]] std::vector<uint32_t> read_packed(const Entry& found) const;

  int64_t in_memory_;
  std::vector<Entry> entries_;
  std::vector<int32_t> chosen_lengths_;  // of pairs
  std::vector<uint32_t> tokens_;         // the first ones; the highest bit: it is trained
  std::unique_ptr<TemporaryFile> file_;  // those behind
  std::vector<uint32_t> packed_;         // of one example
  std::vector<uint32_t> waiting_;        // to be written; none once seal() was called
  int64_t num_tokens_ = 0;
  int32_t highest_token_ = -1;
  int64_t example_of_highest_ = -1;
};

class Examples {
 public:
  Examples() : store_(std::make_shared<ExampleStore>()) {}
  explicit Examples(std::shared_ptr<const ExampleStore> store);  // all of them
  Examples(std::shared_ptr<const ExampleStore> store, std::vector<int64_t> order)
      : store_(std::move(store)), order_(std::move(order)) {}

  [[nodiscard]] size_t size() const { return order_.size(); }
  [[nodiscard]] bool empty() const { return order_.empty(); }
  [[nodiscard]] Example operator[](size_t i) const { return store_->read(order_[i]); }
  [[nodiscard]] ExamplePair pair(size_t i) const { return store_->read_pair(order_[i]); }
  [[nodiscard]] bool has_pairs() const { return store_->has_pairs(); }
  [[nodiscard]] int64_t length(size_t i) const { return store_->length(order_[i]); }
  [[nodiscard]] int64_t length_of_chosen(size_t i) const {
    return store_->length_of_chosen(order_[i]);
  }
  [[nodiscard]] int64_t num_trained(size_t i) const { return store_->num_trained(order_[i]); }
  [[nodiscard]] std::vector<int64_t> lengths() const;
  [[nodiscard]] std::vector<int64_t> lengths_of_answers() const;  // of pairs, two each
  [[nodiscard]] int64_t num_tokens() const;                       // positions of all
  [[nodiscard]] int64_t num_trained() const;                      // of all
  [[nodiscard]] const std::shared_ptr<const ExampleStore>& store() const { return store_; }
  // The numbers in the store.
  [[nodiscard]] const std::vector<int64_t>& order() const { return order_; }
  [[nodiscard]] int64_t memory_bytes() const {
    return store_->memory_bytes() + std::ssize(order_) * static_cast<int64_t>(sizeof(int64_t));
  }

 private:
  std::shared_ptr<const ExampleStore> store_;
  std::vector<int64_t> order_;
};

}  // namespace strata::data
