// SPDX-License-Identifier: Apache-2.0
// strata train --ranks auto: the run of the division that it says, whatever that is.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <fstream>
#include <string>

#include "tests/ranks/ranks_fixture.h"

namespace strata::apps {
namespace {

using testing::HasSubstr;

class AutoRanks : public RanksTest {
 protected:
  [[nodiscard]] TrainOptions base(const std::string& out) const {
    TrainOptions o = options(out);
    o.model = deep_model(4);
    o.steps = 3;
    return o;
  }
  // A file of ranks that compute as fast as here, about, with such a link.
  [[nodiscard]] std::string cluster(const std::string& name, double latency_s,
                                    double bytes_per_s) const {
    const std::string path = root_ + "/" + name + ".toml";
    std::ofstream(path) << fmt::format(
        "flops = 2e10\nread_bytes_per_s = 5e9\nmemory = \"4GiB\"\nlink_latency_s = {}\n"
        "link_bytes_per_s = {}\n",
        latency_s, bytes_per_s);
    return path;
  }
};

// The line that says what was chosen, and of it the options.
std::string chosen_options(const Ended& ended) {
  const std::string begin = "--ranks auto: ";
  const size_t first = ended.text.find(begin);
  EXPECT_NE(first, std::string::npos) << ended.text;
  if (first == std::string::npos) return {};
  const size_t start = first + begin.size();
  EXPECT_EQ(ended.text.find(begin, start), std::string::npos) << "one rank says it";
  return ended.text.substr(start, ended.text.find(';', start) - start);
}

TEST_F(AutoRanks, IsARunOfOneProcessBitByBit) {
  const TrainOptions one = base("one");
  ASSERT_EQ(run_train(one), 0);
  struct Case {
    std::string name, cluster;
    int started;
  };
  for (const Case& c : {Case{"fast", cluster("fast", 1e-6, 1e10), 2},
                        Case{"slow", cluster("slow", 1e-6, 1e3), 2}, Case{"measured", "", 3}}) {
    SCOPED_TRACE(c.name);
    TrainOptions o = base(c.name);
    o.stages.ranks = "auto";
    o.cluster = c.cluster;
    const Ended ended = run_ranks(c.started, o);
    ASSERT_EQ(ended.code, 0) << ended.text;
    EXPECT_THAT(chosen_options(ended), HasSubstr("--ranks pipeline="));
    expect_the_files_of(one, c.name, "adapter_model.safetensors");
  }
}

// Over a link that takes seconds for a kilobyte nobody divides among data ranks, which send all
// gradients, what a pipeline sends less of; by hand the same options make the same plan.
TEST_F(AutoRanks, ChoosesByTheCluster) {
  TrainOptions o = base("auto");
  o.stages.ranks = "auto";
  o.dry_run = true;
  o.rank = 64;  // whose gradients are more than what crosses a border
  o.cluster = cluster("slow", 0, 1e3);
  const Ended slow = run_ranks(2, o);
  ASSERT_EQ(slow.code, 0) << slow.text;
  EXPECT_THAT(chosen_options(slow), HasSubstr("--ranks pipeline=2,data=1 "));
  const Ended again = run_ranks(2, o);
  EXPECT_EQ(chosen_options(again), chosen_options(slow));
}

TEST_F(AutoRanks, RefusesWhatItChooses) {
  TrainOptions o = base("out");
  o.stages.ranks = "auto";
  const Ended alone = run_shell(quoted(command_of(o)));
  EXPECT_EQ(alone.code, 2);
  EXPECT_THAT(alone.text, HasSubstr("--ranks auto: divides a model among the ranks that mpirun"));
  o.stages.microbatches = 2;
  const Ended both = run_ranks(2, o);
  EXPECT_EQ(both.code, 2);
  EXPECT_THAT(both.text, HasSubstr("--ranks auto and --microbatches: give one"));
  o = base("out");
  o.cluster = "dgx-h100";
  const Ended without = run_shell(quoted(command_of(o)));
  EXPECT_EQ(without.code, 2);
  EXPECT_THAT(without.text, HasSubstr("--cluster: of --ranks auto"));
  o.stages.ranks = "auto";
  o.cluster = "dgx-h1000";
  const Ended unknown = run_ranks(2, o);
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.text, HasSubstr("dgx-h1000: No such file, nor a machine of that name: want "
                                      "a TOML file, or of dgx-a100, dgx-h100, "));
  EXPECT_FALSE(fs::exists(o.out));
}

}  // namespace
}  // namespace strata::apps
