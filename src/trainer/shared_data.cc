// SPDX-License-Identifier: Apache-2.0
#include "trainer/shared_data.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "setup/ranks.h"

namespace strata::apps {
namespace {

using data::ExampleStore;

constexpr uint32_t kTrained = uint32_t{1} << 31;
constexpr size_t kPieceValues = 256 << 10;

// Its length, its first token, and each target, of which the highest bit says whether it is
// trained.
void append_packed_example(const data::Example& example, std::vector<uint32_t>& values) {
  values.push_back(static_cast<uint32_t>(example.targets.size()));
  values.push_back(static_cast<uint32_t>(example.tokens.front()));
  for (size_t t = 0; t < example.targets.size(); ++t) {
    values.push_back(static_cast<uint32_t>(example.targets[t]) |
                     (example.weights[t] != 0.0f ? kTrained : 0));
  }
}

data::Example unpack_example(std::span<const uint32_t> values) {
  data::Example example;
  example.tokens.push_back(static_cast<int32_t>(values.front()));
  for (const uint32_t value : values.subspan(1)) {
    example.targets.push_back(static_cast<int32_t>(value & ~kTrained));
    example.weights.push_back((value & kTrained) != 0 ? 1.0f : 0.0f);
    example.num_trained += (value & kTrained) != 0 ? 1 : 0;
  }
  example.tokens.insert(example.tokens.end(), example.targets.begin(), example.targets.end() - 1);
  return example;
}

// Examples from `next` on, which moves on, until there are enough values.
void append_packed_examples(const ExampleStore& store, int64_t& next,
                            std::vector<uint32_t>& values) {
  for (; next < store.size() && values.size() < kPieceValues; ++next)
    append_packed_example(store.read(next), values);
}

void unpack_examples(std::span<const uint32_t> values, ExampleStore& store) {
  while (!values.empty()) {
    const size_t count = values.front() + size_t{1};
    store.add(unpack_example(values.subspan(1, count)));
    values = values.subspan(1 + count);
  }
}

std::shared_ptr<const ExampleStore> broadcast_store(Comm& comm,
                                                    std::shared_ptr<const ExampleStore> store) {
  auto received = std::make_shared<ExampleStore>();
  std::vector<uint32_t> piece;
  int64_t next = 0;
  do {
    piece.clear();
    if (comm.rank() == 0) append_packed_examples(*store, next, piece);
    broadcast(comm, piece);
    if (comm.rank() != 0) unpack_examples(piece, *received);
  } while (!piece.empty());
  received->seal();
  return comm.rank() == 0 ? store : received;
}

struct FileFacts {
  double weight = 1;
  int64_t first = 0, count = 0;
};

// What others than the first rank, which reads them, know of them.
void broadcast_file_facts(Comm& comm, std::vector<data::DataFile>& files) {
  std::vector<FileFacts> all;
  for (const data::DataFile& file : files) all.push_back({file.weight, file.first, file.count});
  broadcast(comm, all);
  if (comm.rank() == 0) return;
  for (const FileFacts& facts : all) {
    data::DataFile& file = files.emplace_back();
    file.weight = facts.weight;
    file.first = facts.first;
    file.count = facts.count;
  }
}

void broadcast_dataset(Comm& comm, const std::shared_ptr<const ExampleStore>& store,
                       data::Dataset& dataset) {
  std::vector<int64_t> order = dataset.examples.order();
  broadcast(comm, order);
  for (int64_t* number :
       {&dataset.num_lines, &dataset.num_too_long, &dataset.num_tokens, &dataset.num_trained}) {
    broadcast(comm, *number);
  }
  broadcast_file_facts(comm, dataset.files);
  if (comm.rank() != 0) dataset.examples = data::Examples(store, std::move(order));
}

}  // namespace

void broadcast_data(Comm& comm, TrainData& data) {
  bool is_one = data.train.examples.store() == data.eval.examples.store();
  broadcast(comm, is_one);
  const auto train = broadcast_store(comm, data.train.examples.store());
  broadcast_dataset(comm, train, data.train);
  broadcast_dataset(comm, is_one ? train : broadcast_store(comm, data.eval.examples.store()),
                    data.eval);
}

}  // namespace strata::apps
