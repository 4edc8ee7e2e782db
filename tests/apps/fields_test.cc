// SPDX-License-Identifier: Apache-2.0
// --fields of data, eval and train, the program itself.
#include <gmock/gmock.h>

#include <boost/json.hpp>

#include "tests/apps/program.h"
#include "tests/trainer/train_fixture.h"

namespace strata::apps {
namespace {

using ::testing::HasSubstr;

class FieldsTest : public TrainTest {
 protected:
  [[nodiscard]] Ran run(const Words& arguments) const {
    Surroundings around;
    around.folder = root_;
    return run_program(arguments, "", around);
  }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(root_ + "/" + name) << text;
  }
};

// Their names change nothing else: not in training, not in what data and eval say.
TEST_F(FieldsTest, MayHaveOtherNames) {
  std::string ours, csv = "id,question,answer\n";
  for (int i = 0; i < 20; ++i) {
    const std::string n = std::to_string(i);
    ours += R"({"prompt": "What is )" + n + R"( plus 1?", "completion": " more"})" + "\n";
    csv += n + ",What is " + n + " plus 1?, more\n";
  }
  write("ours.jsonl", ours);
  write("faq.csv", csv);
  const Words fields = {"--fields", "question=prompt,answer=completion"};
  const auto run_on = [&](Words words, const std::string& file, bool named) {
    words.insert(words.end(), {"--data", file, "--model", "model"});
    if (named) words.insert(words.end(), fields.begin(), fields.end());
    return run(words);
  };
  for (const Words& command : {Words{"data", "--json"}, Words{"eval", "--json"}}) {
    const auto of = [&](const std::string& file, bool named) {
      const Ran ran = run_on(command, file, named);
      EXPECT_EQ(ran.code, 0) << ran.err;
      const boost::json::value out = boost::json::parse(ran.out);
      const boost::json::object& object = out.as_object();
      return boost::json::serialize(command[0] == "data" ? object.at("trained_tokens")
                                                         : object.at("data").at(0).at("results"));
    };
    EXPECT_EQ(of("faq.csv", true), of("ours.jsonl", false)) << command[0];
  }
  const auto train = [&](const std::string& file, bool named, const std::string& out) {
    return run_on({"train", "--steps", "3", "--threads", "2", "--out", out}, file, named);
  };
  EXPECT_EQ(train("faq.csv", true, "a").code, 0);
  EXPECT_EQ(train("ours.jsonl", false, "b").code, 0);
  EXPECT_EQ(losses("a"), losses("b"));
  const Ran unnamed = train("faq.csv", false, "c");
  EXPECT_EQ(unnamed.code, 2);
  EXPECT_THAT(unnamed.err, HasSubstr("--fields"));
  EXPECT_THAT(run({"train", "--model", "model", "--data", "faq.csv", "--out", "d", "--fields",
                   "prompt=question"})
                  .err,
              HasSubstr("'question' is no field that data is read by"));
}

}  // namespace
}  // namespace strata::apps
