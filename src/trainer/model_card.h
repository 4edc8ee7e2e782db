// SPDX-License-Identifier: Apache-2.0
// The model card next to what `strata train` writes: README.md as the Hugging Face Hub reads it,
// with the base, the data by their hash, settings, losses, and how to use the adapter or model in
// Strata, PEFT and transformers. No time and no path of the machine stands in it, so that equal
// runs write equal files.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace strata::apps {

class TrainJob;

struct CardLosses {
  double loss = 0;  // of the last step: nats per trained token, or of pairs the mean of theirs
  std::optional<double> mtp_loss = {};
  std::optional<double> indexer_loss = {};
  std::optional<double> eval_before = {};
  std::optional<double> eval_after = {};
  bool of_pairs = false;
  std::optional<double> reward = {};  // of a run on rewards the last step's mean
  std::optional<std::pair<double, double>> accuracies = {};  // of pairs, before and after
};

// What stays of a run while its losses change.
struct CardFacts {
  std::string base;     // "tiny-qwen3" or, from a cache of the Hub, "Qwen/Qwen3-0.6B"
  bool is_lora = true;  // else all parameters
  bool has_experts = false;
  bool has_chat_template = false;
  bool is_text_part = false;  // of a model that transformers loads with other parts
  bool is_in_4bit = false;    // the base was quantised to nf4 as it was loaded
  std::vector<std::pair<std::string, std::string>> rows = {};      // of the first table
  std::vector<std::pair<std::string, std::string>> settings = {};  // option, value
};

// The last part of the path, or the repository that a folder of the Hub's cache is a snapshot of.
std::string base_model_name(const std::string& model_dir);
CardFacts read_card_facts(TrainJob& job, const std::string& fingerprint);
std::string model_card_text(const CardFacts& facts, int64_t steps, int64_t num_steps,
                            const CardLosses& losses);

}  // namespace strata::apps
