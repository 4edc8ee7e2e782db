// SPDX-License-Identifier: Apache-2.0
// TrainTest: a folder with a tiny model, its variants and a dataset, and runs of strata train in
// it, in this process or in one that may be killed.
#pragma once
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "apps/init.h"
#include "apps/options.h"
#include "backend/thread_comm.h"
#include "base/error.h"
#include "base/files.h"
#include "checkpoint/safetensors.h"
#include "report/metrics_log.h"
#include "trainer/job.h"
#include "trainer/settings.h"
#include "trainer/train.h"

namespace strata::apps {

namespace fs = std::filesystem;

inline std::string content(const std::string& path) { return read_file(path, int64_t{1} << 30); }

// A folder with a one-layer model of random weights under the bundled tokenizer, and a small
// dataset.
class TrainTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = ::testing::TempDir() + "strata_train_" +
            ::testing::UnitTest::GetInstance()->current_test_info()->name();
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
  // With `indexer` its second layer lists entries.
  [[nodiscard]] std::string make_v4_model(bool mtp = false, bool indexer = false) const {
    const std::string out = root_ + (mtp ? "/v4-mtp" : "/v4") + (indexer ? "-indexer" : "");
    if (fs::exists(out)) return out;
    const std::string second =
        indexer ? R"("compressed_sparse_attention"], "index_n_heads": 2, "index_head_dim": 8,
                     "index_topk": 2)"
                : R"("heavily_compressed_attention"])";
    const std::string config = root_ + "/v4-config";
    if (!fs::exists(config)) fs::copy(root_ + "/config", config);
    std::ofstream(config + "/config.json")
        << R"({"architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4",
      "vocab_size": 4096, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
      "head_dim": 16, "qk_rope_head_dim": 8, "q_lora_rank": 8, "o_groups": 2, "o_lora_rank": 4,
      "sliding_window": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8,
      "num_hash_layers": 1, "layer_types": ["sliding_attention", )"
        << second << R"(,
      "hc_mult": 2, "hc_sinkhorn_iters": 3, "max_position_embeddings": 512, "torch_dtype": "float32"})";
    EXPECT_EQ(run_init({.config = config, .out = out, .seed = 1, .mtp = mtp, .threads = 2}), 0);
    return out;
  }
  [[nodiscard]] static std::vector<float> values_of(
      const std::string& dir, const std::string& name,
      const std::string& file_name = "model.safetensors") {
    const SafetensorsFile file(dir + "/" + file_name);
    const TensorInfo* tensor = file.find(name);
    EXPECT_NE(tensor, nullptr) << name;
    if (tensor == nullptr) return {};
    std::vector<float> values(static_cast<size_t>(tensor->shape.num_elements()));
    file.read_f32(*tensor, 0, std::ssize(values), values.data());
    return values;
  }
  // Of a tensor that begins as zeroes.
  static void expect_trained(const std::string& adapter, const std::string& name) {
    const std::vector<float> values = values_of(adapter, name, "adapter_model.safetensors");
    EXPECT_NE(values, std::vector<float>(values.size())) << name;
  }
  [[nodiscard]] TrainOptions options(const std::string& out) const {
    TrainOptions o;
    o.model = model();
    o.data = {root_ + "/data.jsonl"};
    o.out = root_ + "/" + out;
    o.rank = 4;
    o.lr = 1e-2;
    o.steps = 30;
    o.batch_tokens = 120;
    o.micro_tokens = 60;
    o.save_every = "7";
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
  // The program with these options.
  [[nodiscard]] static std::vector<std::string> command_of(const TrainOptions& given) {
    TrainOptions o = given, defaults;
    std::vector<std::string> args = {STRATA_BINARY, "train"};
    const OptionTable table = option_table_of(o), usual = option_table_of(defaults);
    for (size_t i = 0; i < table.rows().size(); ++i) {
      const OptionRow& row = table.rows()[i];
      if (row.text() == usual.rows()[i].text()) continue;
      const bool is_off = row.kind == OptionKind::kFlag && row.text() == "off";
      args.push_back("--" + row.name + (is_off ? "=off" : ""));
      if (row.kind != OptionKind::kFlag) args.push_back(row.text());
    }
    return args;
  }
  // Becomes the program with these options and --resume, with signals as a shell has them.
  [[noreturn]] static void exec(const TrainOptions& given) {
    ::signal(SIGINT, SIG_DFL);
    ::signal(SIGTERM, SIG_DFL);
    TrainOptions o = given;
    o.resume = true;
    std::vector<std::string> args = command_of(o);
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    ::execv(STRATA_BINARY, argv.data());
    ::_exit(127);
  }
  // Runs it in a process of its own, whose stderr goes beside --out; returns its id.
  [[nodiscard]] static pid_t start(const TrainOptions& o) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      const std::string path = o.out + ".stderr";
      ::dup2(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
      exec(o);
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
  // Kills a run, and has it go on with `then`, perhaps otherwise divided, to its end.
  void kill_and_resume(const TrainOptions& run, TrainOptions then) const {
    EXPECT_TRUE(kill_after(run, 15));
    then.resume = true;
    EXPECT_EQ(run_train(then), 0);
  }
  void kill_and_resume(const TrainOptions& run) const { kill_and_resume(run, run); }
  // Runs it, and returns its options with another folder.
  [[nodiscard]] TrainOptions run_and_move(const TrainOptions& run, const std::string& out) const {
    EXPECT_EQ(run_train(run), 0);
    TrainOptions other = run;
    other.out = root_ + "/" + out;
    return other;
  }
  // A model of so many layers.
  [[nodiscard]] std::string deep_model(int num_layers = 3) const {
    std::string config = content(root_ + "/config/config.json");
    const std::string one = "\"num_hidden_layers\": 1";
    if (config.find(one) == std::string::npos) return root_ + "/deep";
    config.replace(config.find(one), one.size(),
                   "\"num_hidden_layers\": " + std::to_string(num_layers));
    std::ofstream(root_ + "/config/config.json") << config;
    EXPECT_EQ(
        run_init({.config = root_ + "/config", .out = root_ + "/deep", .seed = 1, .threads = 2}),
        0);
    return root_ + "/deep";
  }
  // Calls body with the job of a run on one rank, and with its plan where it takes one.
  template <typename Body>
  void with_job(const TrainOptions& given, Body body) const {
    const LoadSpec spec = read_train_spec(given);
    const TrainData data = read_train_data(given, spec);
    const TrainSettings settings = resolve_settings(given, spec, data);
    const TrainRun run = plan_train_run(spec, settings, data);
    run_ranks(run.plan.pipeline.num_ranks(), [&](Comm& comm) {
      const auto job = load_train_job(comm, run, settings, data);
      if constexpr (std::is_invocable_v<Body, TrainJob&>) {
        body(*job);
      } else {
        body(*job, run.plan);
      }
    });
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

}  // namespace strata::apps
