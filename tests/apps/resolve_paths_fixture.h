// SPDX-License-Identifier: Apache-2.0
// ResolvePaths: the program run in a folder with a tiny model, adapters of it and a made cache of
// the hub.
#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/apps/program.h"
#include "tests/trainer/train_fixture.h"

namespace strata::apps {

class ResolvePaths : public TrainTest {
 protected:
  void SetUp() override {
    TrainTest::SetUp();
    around_.folder = root_;
    around_.variables = {
        {"HF_HUB_CACHE", ""}, {"HF_HOME", ""}, {"XDG_CACHE_HOME", ""}, {"HOME", root_ + "/home"}};
  }

  [[nodiscard]] Ran run(const std::vector<std::string>& arguments) const {
    return run_program(arguments, "", around_);
  }
  void expect_works(const std::vector<std::string>& arguments) const {
    const Ran ran = run(arguments);
    EXPECT_EQ(ran.code, 0) << ran.err;
  }
  void expect_refused(const std::vector<std::string>& arguments, const std::string& what) const {
    const Ran ran = run(arguments);
    EXPECT_EQ(ran.code, 2) << ran.err;
    EXPECT_THAT(ran.err, ::testing::HasSubstr(what));
  }

  // An adapter of model(), made in this process so that it says `base`.
  std::string make_adapter(const std::string& base) const {
    TrainOptions o = options("adapter");
    o.steps = 3;
    EXPECT_EQ(run_train(o), 0);
    std::string text = content(o.out + "/adapter_config.json");
    const size_t at = text.find(model());
    EXPECT_NE(at, std::string::npos);
    text.replace(at, model().size(), base);
    std::ofstream(o.out + "/adapter_config.json") << text;
    return o.out;
  }

  // As `hf download` leaves a model: files are links.
  std::string make_snapshot(const std::string& cache, const std::string& hash,
                            const std::string& folder = "models--Org--Tiny-1.5") const {
    const std::string snapshot = cache + "/" + folder + "/snapshots/" + hash;
    fs::create_directories(snapshot);
    for (const auto& file : fs::directory_iterator(model())) {
      fs::create_symlink(file.path(), snapshot + "/" + file.path().filename().string());
    }
    return snapshot;
  }
  static void set_ref(const std::string& cache, const std::string& text) {
    fs::create_directories(cache + "/models--Org--Tiny-1.5/refs");
    std::ofstream(cache + "/models--Org--Tiny-1.5/refs/main") << text;
  }

  // A program called hf in a folder of its own, which PATH then is.
  void make_hf(const std::string& body) {
    fs::create_directories(root_ + "/bin");
    std::ofstream(root_ + "/bin/hf") << "#!/bin/sh\nPATH=/usr/bin:/bin\n" << body;
    fs::permissions(root_ + "/bin/hf", fs::perms::owner_all);
    around_.variables["PATH"] = root_ + "/bin";
  }

  Surroundings around_;
};

inline const std::vector<std::string> kAsk = {
    "--prompt", "What is 2 plus 1?", "--max-tokens", "6", "--temperature", "0", "--threads", "1"};

inline std::vector<std::string> with(std::vector<std::string> first,
                                     const std::vector<std::string>& more) {
  first.insert(first.end(), more.begin(), more.end());
  return first;
}

}  // namespace strata::apps
