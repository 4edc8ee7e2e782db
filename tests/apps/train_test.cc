// strata train from its options to its files: what is refused, what falls, and that a killed run
// resumes to the same bits.
#include "apps/train/train.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "apps/init.h"
#include "apps/train/job.h"
#include "apps/train/plan.h"
#include "backend/thread_comm.h"
#include "base/error.h"
#include "base/files.h"
#include "checkpoint/safetensors.h"
#include "report/metrics_log.h"

namespace strata::apps {
namespace {

namespace fs = std::filesystem;

std::string content(const std::string& path) { return read_file(path, int64_t{1} << 30); }

// A folder with a one-layer model of random weights under the bundled tokenizer, and a small
// dataset.
class TrainTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = testing::TempDir() + "strata_train_" +
            testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(root_);
    fs::create_directories(root_ + "/config");
    const std::string bundled = std::string(STRATA_SOURCE_DIR) + "/models/tiny-qwen3";
    for (const char* name : {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
                             "generation_config.json"}) {
      fs::copy_file(bundled + "/" + name, root_ + "/config/" + name);
    }
    std::ofstream(root_ + "/config/config.json")
        << R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
      "vocab_size": 4096, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
      "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 512,
      "rms_norm_eps": 1e-06, "rope_theta": 10000, "tie_word_embeddings": true, "torch_dtype": "float32"})";
    ASSERT_EQ(run_init({.config = root_ + "/config", .out = model(), .seed = 1, .threads = 2}), 0);
    std::ofstream data(root_ + "/data.jsonl");
    for (int i = 0; i < 40; ++i) {
      data << R"({"prompt": "What is )" << i << R"( plus 1?", "completion": " )" << i + 1
           << R"(."})"
           << "\n";
    }
  }
  void TearDown() override { fs::remove_all(root_); }

  [[nodiscard]] std::string model() const { return root_ + "/model"; }
  // Two layers of DeepSeek-V4 under the same tokenizer, the second with a scored router.
  [[nodiscard]] std::string make_v4_model(bool mtp = false) const {
    const std::string out = root_ + (mtp ? "/v4-mtp" : "/v4");
    if (fs::exists(out)) return out;
    const std::string config = root_ + "/v4-config";
    if (!fs::exists(config)) fs::copy(root_ + "/config", config);
    std::ofstream(config + "/config.json")
        << R"({"architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4",
      "vocab_size": 4096, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
      "head_dim": 16, "qk_rope_head_dim": 8, "q_lora_rank": 8, "o_groups": 2, "o_lora_rank": 4,
      "sliding_window": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8,
      "num_hash_layers": 1, "layer_types": ["sliding_attention", "heavily_compressed_attention"],
      "hc_mult": 2, "hc_sinkhorn_iters": 3, "max_position_embeddings": 512, "torch_dtype": "float32"})";
    EXPECT_EQ(run_init({.config = config, .out = out, .seed = 1, .mtp = mtp, .threads = 2}), 0);
    return out;
  }
  [[nodiscard]] static std::vector<float> values_of(const std::string& dir,
                                                    const std::string& name) {
    const SafetensorsFile file(dir + "/model.safetensors");
    const TensorInfo* tensor = file.find(name);
    EXPECT_NE(tensor, nullptr) << name;
    if (tensor == nullptr) return {};
    std::vector<float> values(static_cast<size_t>(tensor->shape.num_elements()));
    file.read_f32(*tensor, 0, std::ssize(values), values.data());
    return values;
  }
  [[nodiscard]] TrainOptions options(const std::string& out) const {
    TrainOptions o;
    o.model = model();
    o.data = root_ + "/data.jsonl";
    o.out = root_ + "/" + out;
    o.rank = 4;
    o.lr = 1e-2;
    o.steps = 30;
    o.batch_tokens = 120;
    o.micro_tokens = 60;
    o.save_every = 7;
    o.threads = 2;
    return o;
  }
  // The same of a model whose weights are far more than all else.
  [[nodiscard]] TrainOptions wide_options(const std::string& out) const {
    std::ofstream(root_ + "/config/config.json")
        << R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
      "vocab_size": 4096, "hidden_size": 512, "intermediate_size": 4096, "num_hidden_layers": 8,
      "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 512,
      "rms_norm_eps": 1e-06, "rope_theta": 10000, "tie_word_embeddings": true, "torch_dtype": "bfloat16"})";
    TrainOptions o = options(out);
    o.model = root_ + "/wide";
    EXPECT_EQ(run_init({.config = root_ + "/config", .out = o.model, .seed = 1, .threads = 2}), 0);
    o.rank = 1;
    return o;
  }
  [[nodiscard]] std::vector<double> losses(const std::string& out) const {
    std::vector<double> values;
    for (const auto& record : report::read_metrics(root_ + "/" + out + "/metrics.jsonl")) {
      for (const char* name : {"loss", "eval_loss"}) {
        if (record.number(name) == record.number(name)) values.push_back(record.number(name));
      }
    }
    return values;
  }
  [[nodiscard]] std::string fault(const TrainOptions& o) const {
    try {
      run_train(o);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
  // Runs the program with these options in a process of its own; returns its id.
  [[nodiscard]] pid_t start(const TrainOptions& o) const {
    std::vector<std::string> args = {
        STRATA_BINARY,    "train",     "--model",      o.model,  "--data",         o.data,
        "--out",          o.out,       "--method",     o.method, "--rank",         "4",
        "--lr",           "0.01",      "--steps",      "30",     "--batch-tokens", "120",
        "--micro-tokens", "60",        "--save-every", "7",      "--threads",      "2",
        "--optimizer",    o.optimizer, "--resume"};
    if (o.router_bias_rate > 0) {
      args.insert(args.end(), {"--router-bias-rate", std::to_string(o.router_bias_rate)});
    }
    if (o.stages.stages > 1) {
      const auto number = [](int n) { return std::to_string(n); };
      args.insert(args.end(), {"--stages", number(o.stages.stages), "--pipeline-schedule",
                               o.stages.schedule, "--microbatches", number(o.stages.microbatches)});
    }
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    const pid_t pid = ::fork();
    if (pid == 0) {
      const int null = ::open("/dev/null", O_WRONLY);
      ::dup2(null, STDERR_FILENO);
      ::execv(STRATA_BINARY, argv.data());
      ::_exit(127);
    }
    return pid;
  }
  [[nodiscard]] int64_t lines_of(const std::string& path) const {
    std::ifstream file(path);  // the run may be replacing it at this moment: then there are none
    return std::count(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>(), '\n');
  }
  // Kills the run once it has logged `lines` lines; true if it was still alive.
  [[nodiscard]] bool kill_after(const TrainOptions& o, int64_t lines) const {
    const pid_t pid = start(o);
    int status = 0;
    while (::waitpid(pid, &status, WNOHANG) == 0) {
      if (lines_of(o.out + "/metrics.jsonl") >= lines) {
        ::kill(pid, SIGKILL);
        ::waitpid(pid, &status, 0);
        return WIFSIGNALED(status);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    return false;
  }
  // A model of three layers.
  [[nodiscard]] std::string deep_model() const {
    std::string config = content(root_ + "/config/config.json");
    const std::string one = "\"num_hidden_layers\": 1";
    if (config.find(one) == std::string::npos) return root_ + "/deep";
    config.replace(config.find(one), one.size(), "\"num_hidden_layers\": 3");
    std::ofstream(root_ + "/config/config.json") << config;
    EXPECT_EQ(
        run_init({.config = root_ + "/config", .out = root_ + "/deep", .seed = 1, .threads = 2}),
        0);
    return root_ + "/deep";
  }
  // Borrows nothing that outlives it.
  template <typename Body>
  void with_job(const TrainOptions& o, Body body) const {
    const TrainData data = read_train_data(o);
    const engine::PipelinePlan plan = plan_stages(o, o.stages);
    run_ranks(1, [&](Comm& comm) { body(*make_train_job(comm, plan, o, data)); });
  }
  void expect_same_files(const std::string& a, const std::string& b,
                         const std::vector<std::string>& names) const {
    for (const std::string& name : names) {
      EXPECT_TRUE(content(root_ + "/" + a + "/" + name) == content(root_ + "/" + b + "/" + name))
          << name;
    }
    EXPECT_EQ(losses(a), losses(b));
  }

  std::string root_;
};

TEST_F(TrainTest, LossFallsAndFilesAreThere) {
  TrainOptions full = options("full");
  full.method = "full";
  ASSERT_EQ(run_train(full), 0);
  const std::vector<double> values = losses("full");
  // Random weights know nothing: the first value is near ln 4096.
  EXPECT_NEAR(values.front(), 8.318, 0.3);
  EXPECT_LT(values.back(), 0.8 * values.front());
  TrainOptions lora = options("out");
  lora.steps = 2;
  ASSERT_EQ(run_train(lora), 0);
  for (const char* name :
       {"adapter_config.json", "adapter_model.safetensors", "loss.svg", "metrics.jsonl",
        "trainer/optimizer.safetensors", "trainer/state.json"}) {
    EXPECT_TRUE(file_exists(root_ + "/out/" + name)) << name;
  }
}

TEST_F(TrainTest, AKilledLoraRunResumesToTheSameBits) {
  ASSERT_EQ(run_train(options("straight")), 0);
  int kills = 0;
  for (const int64_t lines : {3, 12, 20, 31}) kills += kill_after(options("killed"), lines);
  EXPECT_GE(kills, 1);
  TrainOptions last = options("killed");
  last.resume = true;
  ASSERT_EQ(run_train(last), 0);
  expect_same_files(
      "straight", "killed",
      {"adapter_model.safetensors", "trainer/optimizer.safetensors", "trainer/state.json"});
}

TEST_F(TrainTest, AKilledFullRunResumesToTheSameBits) {
  std::string weights;
  for (const char* const optimizer : {"adamw", "muon"}) {
    SCOPED_TRACE(optimizer);
    TrainOptions straight = options(std::string("straight-") + optimizer);
    straight.method = "full";
    straight.optimizer = optimizer;
    ASSERT_EQ(run_train(straight), 0);
    TrainOptions killed = options(std::string("killed-") + optimizer);
    killed.method = "full";
    killed.optimizer = optimizer;
    EXPECT_TRUE(kill_after(killed, 15));
    killed.resume = true;
    ASSERT_EQ(run_train(killed), 0);
    expect_same_files(
        std::string("straight-") + optimizer, std::string("killed-") + optimizer,
        {"model.safetensors", "config.json", "tokenizer.json", "trainer/optimizer.safetensors"});
    const std::string trained = content(straight.out + "/model.safetensors");
    EXPECT_FALSE(trained == content(model() + "/model.safetensors"));
    EXPECT_FALSE(trained == weights);
    weights = trained;
  }
}

TEST_F(TrainTest, StagesChangeNoBit) {
  TrainOptions one = options("one");
  one.model = deep_model();
  one.targets = "all-linear,embed_tokens,lm_head";
  one.steps = 5;
  ASSERT_EQ(run_train(one), 0);
  const std::vector<StageOptions> divisions = {
      {.stages = 2, .schedule = "1f1b", .microbatches = 3},
      {.stages = 3, .schedule = "gpipe", .microbatches = 2, .layers_per_stage = "1,1,1"},
      {.stages = 1, .chunks = 3, .schedule = "circular", .microbatches = 2},
      {.stages = 2, .microbatches = 1, .leftovers = "before"}};
  for (size_t i = 0; i < divisions.size(); ++i) {
    SCOPED_TRACE(i);
    TrainOptions divided = one;
    divided.out = root_ + "/divided" + std::to_string(i);
    divided.stages = divisions[i];
    divided.recompute = i % 2 == 1 ? "full" : "none";
    ASSERT_EQ(run_train(divided), 0);
    expect_same_files("one", "divided" + std::to_string(i),
                      {"adapter_model.safetensors", "adapter_config.json",
                       "trainer/optimizer.safetensors", "trainer/state.json"});
  }
}

TEST_F(TrainTest, StagesChangeNoBitOfAllParameters) {
  for (const char* const optimizer : {"adamw", "muon"}) {
    SCOPED_TRACE(optimizer);
    TrainOptions one = options(std::string("one-") + optimizer);
    one.model = deep_model();
    one.method = "full";
    one.optimizer = optimizer;
    one.dtype = "bf16";
    one.steps = 4;
    ASSERT_EQ(run_train(one), 0);
    TrainOptions divided = one;
    divided.out = root_ + "/divided-" + optimizer;
    divided.stages = {.stages = 3, .schedule = "1f1b", .microbatches = 3};
    ASSERT_EQ(run_train(divided), 0);
    expect_same_files(std::string("one-") + optimizer, std::string("divided-") + optimizer,
                      {"model.safetensors", "config.json", "tokenizer.json",
                       "trainer/optimizer.safetensors", "trainer/state.json"});
  }
}

TEST_F(TrainTest, AKilledRunInStagesResumesInOthersToTheSameBits) {
  TrainOptions straight = options("straight");
  straight.model = deep_model();
  ASSERT_EQ(run_train(straight), 0);
  TrainOptions killed = straight;
  killed.out = root_ + "/killed";
  killed.stages = {.stages = 2, .schedule = "1f1b", .microbatches = 2};
  EXPECT_TRUE(kill_after(killed, 15));
  killed.resume = true;
  killed.stages = {.stages = 3, .schedule = "gpipe", .microbatches = 3};
  ASSERT_EQ(run_train(killed), 0);
  expect_same_files("straight", "killed",
                    {"adapter_model.safetensors", "trainer/optimizer.safetensors"});
  straight.out = root_ + "/straight-full";
  straight.method = "full";
  ASSERT_EQ(run_train(straight), 0);
  killed = straight;
  killed.out = root_ + "/killed-full";
  killed.stages = {.stages = 3, .schedule = "gpipe", .microbatches = 3};
  EXPECT_TRUE(kill_after(killed, 15));
  killed.resume = true;
  killed.stages = {.stages = 2, .schedule = "1f1b", .microbatches = 2};
  ASSERT_EQ(run_train(killed), 0);
  expect_same_files("straight-full", "killed-full",
                    {"model.safetensors", "trainer/optimizer.safetensors"});
}

TEST_F(TrainTest, RefusesStagesThatDoNotFitByTheirNumbers) {
  TrainOptions o = options("out");
  o.model = deep_model();
  const auto refused = [&](const StageOptions& stages) {
    TrainOptions divided = o;
    divided.stages = stages;
    return fault(divided);
  };
  const auto expect_in = [](const std::string& text, const std::string& message) {
    EXPECT_NE(message.find(text), std::string::npos) << message;
  };
  expect_in("2 stages of 2 chunks are 4 chunks, and the model has 3 layers",
            refused({.stages = 2, .chunks = 2, .schedule = "circular", .microbatches = 2}));
  expect_in("2 stages with 4 layers, want 2 stages with the model's 3 layers",
            refused({.stages = 2, .layers_per_stage = "2,2"}));
  expect_in("got '0' in '3,0'", refused({.stages = 2, .layers_per_stage = "3,0"}));
  expect_in("2 ranks, 3 micro-batches, 1 chunks",
            refused({.stages = 2, .schedule = "circular", .microbatches = 3}));
  expect_in("weight gradients apart",
            refused({.stages = 2, .schedule = "zb1p", .microbatches = 4}));
  expect_in("--leftovers after: --layers-per-stage 2,1 leaves none over",
            refused({.stages = 2, .layers_per_stage = "2,1", .leftovers = "after"}));
  o.memory = "8GiB";
  expect_in("--memory and --stages", refused({.stages = 2}));
}

// The biases of the routers are no parameters: a run that is killed must find them again.
TEST_F(TrainTest, RoutersBiasesFollowLoadsAndAKilledRunFindsThemAgain) {
  const std::string biases = "model.layers.1.mlp.gate.e_score_correction_bias";
  const auto run = [&](const char* out, double rate) {
    TrainOptions o = options(out);
    o.model = make_v4_model();
    o.method = "full";
    o.router_bias_rate = rate;
    return o;
  };
  const TrainOptions straight = run("straight", 0.125);
  ASSERT_EQ(run_train(straight), 0);
  TrainOptions killed = run("killed", 0.125);
  EXPECT_TRUE(kill_after(killed, 15));
  killed.resume = true;
  ASSERT_EQ(run_train(killed), 0);
  expect_same_files("straight", "killed", {"model.safetensors", "trainer/optimizer.safetensors"});
  // Thirty steps of an eighth, up or down or none.
  double moved = 0;
  for (const float value : values_of(straight.out, biases)) {
    EXPECT_EQ(value * 8, std::round(value * 8)) << value;
    moved += std::abs(value);
  }
  EXPECT_GE(moved, 0.125);
  const TrainOptions still = run("still", 0);
  ASSERT_EQ(run_train(still), 0);
  EXPECT_EQ(values_of(still.out, biases), std::vector<float>(4, 0.0f));
}

TEST_F(TrainTest, MultiTokenPredictionTrainsBesideTheModel) {
  const std::string name = "model.mtp.0.e_proj.weight";
  const auto run = [&](const char* out, std::optional<double> weight) {
    TrainOptions o = options(out);
    o.model = make_v4_model(/*mtp=*/true);
    o.method = "full";
    o.mtp_weight = weight;
    return o;
  };
  const auto mtp_losses = [&](const char* out) {
    std::vector<double> values;
    for (const auto& record : report::read_metrics(root_ + "/" + out + "/metrics.jsonl")) {
      const double loss = record.number("mtp_loss");
      if (loss == loss) values.push_back(loss);
    }
    return values;
  };
  // Where the model has the layer it is trained unless it is switched off.
  const TrainOptions straight = run("straight", {});
  ASSERT_EQ(run_train(straight), 0);
  TrainOptions killed = run("killed", {});
  EXPECT_TRUE(kill_after(killed, 15));
  killed.resume = true;
  ASSERT_EQ(run_train(killed), 0);
  expect_same_files("straight", "killed", {"model.safetensors", "trainer/optimizer.safetensors"});
  const std::vector<double> losses_of_run = mtp_losses("straight");
  ASSERT_EQ(losses_of_run.size(), 30u);
  EXPECT_LT(losses_of_run.back(), 0.9 * losses_of_run.front());
  const std::vector<float> before = values_of(straight.model, name);
  EXPECT_NE(values_of(straight.out, name), before);

  const TrainOptions off = run("off", 0.0);
  ASSERT_EQ(run_train(off), 0);
  EXPECT_TRUE(mtp_losses("off").empty());
  EXPECT_EQ(values_of(off.out, name), before);
}

TEST_F(TrainTest, AnAdapterMayHaveMultiTokenPredictionToo) {
  TrainOptions o = options("adapter");
  o.model = make_v4_model(/*mtp=*/true);
  o.steps = 4;
  ASSERT_EQ(run_train(o), 0);
  const std::string key = "base_model.model.model.mtp.0.h_proj.lora_B.weight";
  EXPECT_EQ(SafetensorsFile(o.out + "/adapter_model.safetensors").find(key), nullptr);
  o.out = root_ + "/adapter-mtp";
  o.mtp_weight = 0.3;
  ASSERT_EQ(run_train(o), 0);
  const SafetensorsFile file(o.out + "/adapter_model.safetensors");
  const TensorInfo* b = file.find(key);
  ASSERT_NE(b, nullptr);
  std::vector<float> values(static_cast<size_t>(b->shape.num_elements()));
  file.read_f32(*b, 0, std::ssize(values), values.data());
  EXPECT_TRUE(std::any_of(values.begin(), values.end(), [](float v) { return v != 0.0f; }));
  o = options("none");
  o.mtp_weight = 0.3;
  EXPECT_NE(fault(o).find("no layer of multi-token prediction"), std::string::npos) << fault(o);
  EXPECT_FALSE(fs::exists(o.out));
}

TEST_F(TrainTest, ThreadsRecomputeAndPassesDoNotChangeABit) {
  TrainOptions one = options("one");
  one.steps = 5;
  ASSERT_EQ(run_train(one), 0);
  TrainOptions other = one;
  other.out = root_ + "/other";
  other.threads = 1;
  other.recompute = "full";
  other.micro_tokens = 1;
  other.save_every = 1;
  ASSERT_EQ(run_train(other), 0);
  expect_same_files("one", "other", {"adapter_model.safetensors", "trainer/optimizer.safetensors"});
}

TEST_F(TrainTest, TheLeastMemoryRecomputesAndChangesNoBit) {
  TrainOptions one = options("one");
  one.steps = 3;
  ASSERT_EQ(run_train(one), 0);
  TrainOptions least = one;
  least.out = root_ + "/least";
  const auto set = [&](int64_t kib) {
    least.memory = std::to_string(kib) + "KiB";
    engine::EngineOptions chosen;
    with_job(least, [&](TrainJob& job) {
      fit_memory(job);
      chosen = job.engine().options();
    });
    return chosen;
  };
  EXPECT_TRUE(set(1 << 20).recompute.keeps_all());
  EXPECT_EQ(set(1 << 20).pass_tokens, least.micro_tokens);
  int64_t too_little = 1, enough = 1 << 20;
  while (enough - too_little > 1) {
    const int64_t middle = (enough + too_little) / 2;
    try {
      set(middle);
      enough = middle;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("--memory " + least.memory), std::string::npos);
      too_little = middle;
    }
  }
  EXPECT_FALSE(set(enough).recompute.keeps_all());
  ASSERT_EQ(run_train(least), 0);
  expect_same_files("one", "least", {"adapter_model.safetensors", "trainer/optimizer.safetensors"});
  least.out = root_ + "/both";
  least.recompute = "full";
  EXPECT_NE(fault(least).find("--memory and --recompute: give one"), std::string::npos);
}

// The plan is of the longest pass that the data's batches come to, held out ones among them, not of
// one that is as long as it may be.
TEST_F(TrainTest, ThePlanIsOfTheLongestPass) {
  const auto booked = [](engine::Engine& engine) {
    Backend& backend = engine.backend();
    int64_t bytes = backend.scratch().booked();
    for (int i = 0; i < backend.num_lanes(); ++i) bytes += backend.lane(i).scratch().booked();
    return bytes;
  };
  const auto pass_of = [](TrainJob& job) {
    for (const engine::PlanItem& item : plan_of(job).memory.items) {
      if (item.name == "pass") return item.bytes;
    }
    return int64_t{0};
  };
  for (const bool long_held_out : {false, true}) {
    TrainOptions o = options("out");
    o.micro_tokens = 400;
    o.batch_tokens = long_held_out ? 20 : 400;
    o.eval_fraction = 0.5;
    const std::unique_ptr<TrainJob> job = make_train_job(o);
    while (job->steps_done() < job->num_steps()) job->step();
    const int64_t trained = booked(job->engine());
    job->evaluate();
    const int64_t planned = pass_of(*job), taken = booked(job->engine());
    EXPECT_EQ(taken > trained, long_held_out);
    EXPECT_LE(taken, planned);
    EXPECT_GT(taken, planned * 9 / 10);
    EXPECT_LE(plan_of(*job).pass.pass_tokens, o.batch_tokens);
  }
}

// The weights are twice the memory of the whole run.
TEST_F(TrainTest, WeightsLargerThanTheMemoryLieInAFileAndChangeNoBit) {
  TrainOptions one = wide_options("one");
  one.steps = 3;
  ASSERT_EQ(run_train(one), 0);
  TrainOptions less = one;
  less.out = root_ + "/less";
  with_job(one, [&](TrainJob& job) {
    EXPECT_FALSE(job.engine().model().weights->in_files());
    less.memory = std::to_string(job.engine().model().weights->num_bytes() / 2);
  });
  with_job(less, [&](TrainJob& job) {
    EXPECT_TRUE(job.engine().model().weights->in_files());
    fit_memory(job);
    EXPECT_LE(plan_of(job).memory.total(), std::stoll(less.memory));
  });
  ASSERT_EQ(run_train(less), 0);
  expect_same_files("one", "less", {"adapter_model.safetensors", "trainer/optimizer.safetensors"});
  less.out = root_ + "/nowhere";
  less.offload = root_ + "/no/such/folder";
  EXPECT_NE(fault(less).find("--offload " + less.offload), std::string::npos);
  less.memory.clear();
  less.offload = testing::TempDir();
  EXPECT_NE(fault(less).find("--offload: the folder of what --memory does not hold"),
            std::string::npos);
}

// Of files without names that this process has open: takes what the system keeps of them in memory.
void throw_out_files() {
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = fs::read_symlink(entry.path(), gone).string();
    if (!target.ends_with(" (deleted)")) continue;
    const int file = std::stoi(entry.path().filename());
    ::fdatasync(file);
    ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  }
}

// What the system holds in memory of the matrices, in pages.
int64_t resident_pages(const model::ModelWeights& weights) {
  int64_t pages = 0;
  for (const model::Parameter& parameter : weights.table()) {
    if (!parameter.is_matrix()) continue;
    const auto begin = reinterpret_cast<uintptr_t>(parameter.panel.data) / 4096 * 4096;
    const auto bytes = static_cast<size_t>(parameter.panel.num_bytes());
    std::vector<unsigned char> is_there(bytes / 4096 + 2);
    ::mincore(reinterpret_cast<void*>(begin), bytes, is_there.data());
    for (const unsigned char page : is_there) pages += page & 1;
  }
  return pages;
}

// Twenty steps, before each of which the system has thrown out what it kept of the file. Run with
// the slow tests.
TEST_F(TrainTest, DISABLED_TwentyStepsFromAFileThatIsThrownOutChangeNoBit) {
  TrainOptions one = wide_options("one");
  one.steps = 20;
  TrainOptions less = one;
  {
    const std::unique_ptr<TrainJob> job = make_train_job(one);
    while (job->steps_done() < job->num_steps()) job->step();
    job->export_to(root_ + "/one");
    less.memory = std::to_string(job->engine().model().weights->num_bytes() / 2);
  }
  const std::unique_ptr<TrainJob> job = make_train_job(less);
  fit_memory(*job);
  const model::ModelWeights& weights = *job->engine().model().weights;
  ASSERT_TRUE(weights.in_files());
  EXPECT_LE(plan_of(*job).memory.total(), std::stoll(less.memory));
  for (int step = 0; step < 20; ++step) {
    const int64_t before = resident_pages(weights);
    throw_out_files();
    EXPECT_LT(resident_pages(weights), before / 2);
    job->step();
  }
  job->export_to(root_ + "/less");
  expect_same_files("one", "less", {"adapter_model.safetensors"});
}

TEST_F(TrainTest, ResumeWithOtherOptionsIsRefusedByName) {
  TrainOptions o = options("out");
  o.steps = 2;
  ASSERT_EQ(run_train(o), 0);
  EXPECT_NE(fault(o).find("holds a run already"), std::string::npos);
  o.resume = true;
  o.lr = 0.5;
  o.seed = 3;
  const std::string message = fault(o);
  EXPECT_NE(message.find("lr: was \"0.01\", now \"0.5\""), std::string::npos) << message;
  EXPECT_NE(message.find("seed: was \"0\", now \"3\""), std::string::npos) << message;
}

// Neither another base of equal shapes nor another rank of experts may go on with a run; a copy of
// the base elsewhere may.
TEST_F(TrainTest, ResumeOnAnotherModelOrExpertRankIsRefused) {
  TrainOptions o = options("out");
  o.steps = 2;
  ASSERT_EQ(run_train(o), 0);
  o.resume = true;
  o.expert_rank = "full";
  EXPECT_NE(fault(o).find("expert-rank: was \"divided\", now \"full\""), std::string::npos);
  o.expert_rank = "divided";
  const std::string first = o.model;
  o.model = root_ + "/copy";
  fs::copy(first, o.model, fs::copy_options::recursive);
  EXPECT_EQ(run_train(o), 0);
  o.model = root_ + "/other";
  ASSERT_EQ(run_init({.config = root_ + "/config", .out = o.model, .seed = 2, .threads = 2}), 0);
  const std::string message = fault(o);
  EXPECT_NE(message.find("model: was"), std::string::npos) << message;
  EXPECT_EQ(message.find("data: was"), std::string::npos) << message;
}

TEST_F(TrainTest, BadOptionsAndDataAreNamedAndNothingStarts) {
  TrainOptions o = options("out");
  o.method = "qlora";
  EXPECT_EQ(fault(o), "--method: got 'qlora', want lora or full");
  o = options("out");
  o.optimizer = "muon";
  EXPECT_EQ(fault(o),
            "--optimizer muon: steps matrices of all parameters; give --method full with it");
  o = options("out");
  o.router_bias_rate = 1e-3;
  EXPECT_EQ(
      fault(o),
      "--router-bias-rate: the biases are the base model's, an adapter has no place for them; "
      "give --method full with it");
  o.method = "full";
  EXPECT_EQ(fault(o),
            "--router-bias-rate: no router of " + o.model + " (Qwen3ForCausalLM) has a bias");
  o = options("out");
  o.targets = "q_proj,nope";
  EXPECT_NE(fault(o).find("nope"), std::string::npos);
  o = options("out");
  o.device = "cuda";
  EXPECT_NE(fault(o).find("cuda"), std::string::npos);
  o = options("out");
  std::ofstream(o.data, std::ios::app) << "{\"prompt\": 1}\n";
  EXPECT_EQ(fault(o), o.data + ":41: prompt: got a number, want a string");
  EXPECT_FALSE(fs::exists(o.out));
  o.model = root_ + "/absent";
  EXPECT_NE(fault(o).find("absent"), std::string::npos);
}

}  // namespace
}  // namespace strata::apps
