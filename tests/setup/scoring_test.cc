// SPDX-License-Identifier: Apache-2.0
#include "setup/scoring.h"

#include <gtest/gtest.h>

#include "tests/base/temp_dir.h"

namespace strata::apps {
namespace {

TEST(Scoring, NamesTheFileWhoseTokenTheVocabularyLacks) {
  const testing::TempDir dir;
  const auto store = std::make_shared<data::ExampleStore>();
  data::Dataset dataset;
  for (const int32_t highest : {7, 9, 8}) {
    const std::string path = dir.file(std::to_string(highest) + ".jsonl");
    testing::write_bytes(path, "{}");
    dataset.files.push_back({.file = std::make_shared<const data::InputFile>(path),
                             .first = store->size(),
                             .count = 2});
    for (const int32_t target : {1, highest}) {
      store->add({.tokens = {2}, .targets = {target}, .weights = {1}, .num_trained = 1});
    }
  }
  store->seal();
  dataset.examples = data::Examples(store, {0, 5});
  check_tokens_in_vocabulary(dataset, 10);
  EXPECT_EQ(testing::error_of([&] { check_tokens_in_vocabulary(dataset, 9); }),
            dir.file("9.jsonl") +
                ": token id 9, the model's vocabulary has 9; is the tokenizer another model's?");
}

}  // namespace
}  // namespace strata::apps
