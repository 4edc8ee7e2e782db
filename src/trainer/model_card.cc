// SPDX-License-Identifier: Apache-2.0
#include "trainer/model_card.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <filesystem>

#include "base/ascii.h"
#include "base/crypto.h"
#include "model/adapter/base_numbers.h"
#include "setup/adapter_texts.h"
#include "setup/hub_cache.h"
#include "text/chat_template.h"
#include "text/json_reader.h"
#include "trainer/job.h"

namespace strata::apps {
namespace {

// A hash of the file's bytes, unpacked.
std::string hex_sha256(const data::InputFile& file) {
  Sha256 sum;
  file.for_each_piece([&](std::string_view piece) { sum.add(piece); });
  return to_hex(sum.finish());
}

// Its examples in the set, each counted once.
int64_t num_examples_of(const data::DataFile& file, const data::Dataset& dataset) {
  std::vector<bool> seen(static_cast<size_t>(file.count));
  for (const int64_t i : dataset.examples.order()) {
    if (i >= file.first && i < file.first + file.count)
      seen[static_cast<size_t>(i - file.first)] = true;
  }
  return std::count(seen.begin(), seen.end(), true);
}

// What the card says of a file: its examples, weight and SHA-256.
std::string describe_file(const data::DataFile& file, const data::Dataset& dataset) {
  const std::string name = std::filesystem::path(file.file->shown()).filename().string();
  std::string text = fmt::format("`{}`, {} examples", name, num_examples_of(file, dataset));
  if (file.weight != 1) text += fmt::format(", weight {}", file.weight);
  const bool is_packed = file.file->packing() != data::Packing::kNone;
  return text + fmt::format(", SHA-256{} `{}`", is_packed ? " of its content" : "",
                            hex_sha256(*file.file));
}

// Whether neither YAML nor a shell takes a character of it for its own.
bool is_plain(std::string_view text) { return strata::is_plain(text, "/"); }

// What YAML 1.1 reads as no text: its null and its truths.
bool is_yaml_word(const std::string& text) {
  constexpr std::string_view kWords[] = {"null", "true", "false", "yes", "no",
                                         "on",   "off",  "y",     "n"};
  return std::find(std::begin(kWords), std::end(kWords), lower(text)) != std::end(kWords);
}

// A plain scalar of YAML, or a quoted one.
std::string yaml_scalar(const std::string& text) {
  const bool starts = !text.empty() && std::isalpha(static_cast<unsigned char>(text[0]));
  return starts && is_plain(text) && !is_yaml_word(text) ? text : text::json_quote(text);
}

std::string front_matter(const CardFacts& facts) {
  std::string out = fmt::format("---\nbase_model: {}\n", yaml_scalar(facts.base));
  out += fmt::format("library_name: {}\n", facts.is_lora ? "peft" : "transformers");
  out += "pipeline_tag: text-generation\ntags:\n";
  if (facts.is_lora) out += "- lora\n";
  return out + "- strata\n---\n\n";
}

// A cell of a table of Markdown.
std::string markdown_cell(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

std::string markdown_table(const std::string& head,
                           const std::vector<std::pair<std::string, std::string>>& rows) {
  std::string out = head + "|---|---|\n";
  for (const auto& [name, value] : rows)
    out += fmt::format("| {} | {} |\n", name, markdown_cell(value));
  return out + "\n";
}

std::string loss_text(double loss, bool of_pairs = false) {
  if (of_pairs) return fmt::format("{:.4f} per pair", loss);
  return fmt::format("{:.4f} nats per token (perplexity {:.4g})", loss, std::exp(loss));
}

void add_reward_rows(const CardLosses& losses,
                     std::vector<std::pair<std::string, std::string>>& rows) {
  rows.emplace_back("mean reward", fmt::format("{:.4f}, last step", *losses.reward));
  // An evaluation's loss is its mean reward, less than nothing.
  if (!losses.eval_before || !losses.eval_after) return;
  rows.emplace_back("evaluation reward before", fmt::format("{:.4f}", -*losses.eval_before));
  rows.emplace_back("evaluation reward after", fmt::format("{:.4f}", -*losses.eval_after));
}

void add_loss_rows(const CardLosses& losses,
                   std::vector<std::pair<std::string, std::string>>& rows) {
  if (losses.reward) return add_reward_rows(losses, rows);
  rows.emplace_back("training loss", loss_text(losses.loss, losses.of_pairs) + ", last step");
  if (losses.mtp_loss) {
    rows.emplace_back("loss of multi-token prediction", loss_text(*losses.mtp_loss));
  }
  if (losses.indexer_loss) {
    rows.emplace_back("loss of the indexers", fmt::format("{:.4f} nats", *losses.indexer_loss));
  }
  if (!losses.eval_before || !losses.eval_after) return;
  rows.emplace_back("evaluation loss before", loss_text(*losses.eval_before, losses.of_pairs));
  rows.emplace_back("evaluation loss after", loss_text(*losses.eval_after, losses.of_pairs));
  if (!losses.accuracies) return;
  rows.emplace_back("accuracy of pairs before and after",
                    fmt::format("{:.1f} %, {:.1f} %", 100 * losses.accuracies->first,
                                100 * losses.accuracies->second));
}

// Where a reader finds the base: by its name on the Hub, or in a folder of theirs.
std::string base_place(const CardFacts& facts) {
  return facts.base.find('/') != std::string::npos ? facts.base : "path/to/" + facts.base;
}

std::string strata_usage(const CardFacts& facts) {
  const char* const base = is_plain(facts.base) ? "$BASE" : "\"$BASE\"";
  const std::string model =
      facts.is_lora ? fmt::format("{} --adapter .", facts.is_in_4bit ? "base-nf4" : base) : ".";
  std::string out = "### Strata\n\n```bash\n";
  if (facts.is_in_4bit) out += fmt::format("strata convert {} --type nf4 --out base-nf4\n", base);
  if (facts.has_chat_template) {
    out += fmt::format("strata chat --model {}\n", model);
    out += fmt::format("strata chat --model {} --prompt \"Hello\"\n", model);
  }
  return out + fmt::format("strata generate --model {} --prompt \"Hello\"\n```\n\n", model);
}

// Lines that answer "Hello" with `model` and `tokenizer`.
std::string python_generate_lines(const CardFacts& facts) {
  const char* const prompt =
      facts.has_chat_template
          ? "messages = [{\"role\": \"user\", \"content\": \"Hello\"}]\n"
            "inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, "
            "return_dict=True, return_tensors=\"pt\")\n"
          : "inputs = tokenizer(\"Hello\", return_tensors=\"pt\")\n";
  return fmt::format(
      "{}output = model.generate(**inputs, max_new_tokens=40)\n"
      "print(tokenizer.decode(output[0]))\n",
      prompt);
}

// How an adapter is used by PEFT and by transformers; `load` makes the base's model and tokenizer.
std::string adapter_usage(const CardFacts& facts, const std::string& import,
                          const std::string& load) {
  std::string out = fmt::format(
      "### PEFT\n\n```python\nfrom peft import PeftModel\n{}\n{}"
      "model = PeftModel.from_pretrained(model, \".\")\n{}```\n\n",
      import, load, python_generate_lines(facts));
  if (facts.has_experts) {
    out +=
        "PEFT 0.21 warns that keys of `rank_pattern` and `alpha_pattern` match no module: those of "
        "experts name\nparameters, and it applies them.\n\n";
  }
  out +=
      "A model of its own, without the adapter:\n\n```python\n"
      "model.merge_and_unload().save_pretrained(\"merged\")\n"
      "tokenizer.save_pretrained(\"merged\")\n```\n\n";
  return out + fmt::format(
                   "### transformers\n\nWith PEFT installed:\n\n```python\n{}\n{}"
                   "model.load_adapter(\".\")\n{}```\n",
                   import, load, python_generate_lines(facts));
}

std::string python_usage(const CardFacts& facts) {
  const char* const cls =
      facts.is_text_part && facts.is_lora ? "AutoModelForImageTextToText" : "AutoModelForCausalLM";
  const std::string base = facts.is_lora
                               ? fmt::format("base = {}\n", text::json_quote(base_place(facts)))
                               : "base = \".\"\n";
  const std::string load = fmt::format(
      "{}tokenizer = AutoTokenizer.from_pretrained(base)\n{}"
      "model = {}.from_pretrained(base, dtype=\"auto\"{})\n",
      base,
      facts.is_in_4bit
          ? "nf4 = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type=\"nf4\")\n"
          : "",
      cls, facts.is_in_4bit ? ", quantization_config=nf4" : "");
  const std::string import = fmt::format("from transformers import {}, AutoTokenizer{}\n", cls,
                                         facts.is_in_4bit ? ", BitsAndBytesConfig" : "");
  if (facts.is_lora) return adapter_usage(facts, import, load);
  return fmt::format("### transformers\n\n```python\n{}\n{}{}```\n", import, load,
                     python_generate_lines(facts));
}

// Whether an option had a part in the run; files have rows of their own.
bool is_listed_in_card(std::string_view name, const std::string& value,
                       const TrainOptions& options) {
  const auto is_one_of = [&](std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (value.empty() || is_one_of({"model", "data", "eval"})) return false;
  if (value == "0" && is_one_of({"epochs", "steps", "batch-size", "batch-tokens"})) return false;
  if (name == "muon-momentum") return options.optimizer == "muon";
  if (name == "label-smoothing") return options.loss.type == "robust";
  if (name == "loss") return options.loss.loss != "cross_entropy";
  if (name == "loss-type") return options.loss.loss == "dpo";
  if (name == "beta") return options.loss.of_pairs();
  if (is_one_of({"reward", "grpo-loss", "importance", "group-size", "max-tokens", "temperature",
                 "updates"}))
    return options.loss.of_rewards();
  const bool is_fresh = options.method == "lora" && options.adapter.empty();
  return is_fresh || !is_one_of({"rank", "alpha", "expert-rank", "targets"});
}

bool has_experts(const model::LayerTable& layers) {
  for (int64_t layer = 0; layer < layers.num_layers(); ++layer) {
    for (const model::LoraTarget& target : layers.targets(layer)) {
      if (target.num_experts > 0) return true;
    }
  }
  return false;
}

std::string recorded_text(const boost::json::object& values, std::string_view name) {
  const boost::json::value* value = values.if_contains(name);
  if (value == nullptr) return {};
  return value->is_string() ? std::string(value->as_string()) : boost::json::serialize(*value);
}

void add_file_rows(const char* name, const data::Dataset& dataset, CardFacts& facts) {
  for (const data::DataFile& file : dataset.files) {
    facts.rows.emplace_back(name, describe_file(file, dataset));
  }
}

void add_data_rows(const TrainJob& job, CardFacts& facts) {
  add_file_rows("training data", job.train_data(), facts);
  if (!job.options().eval.empty()) return add_file_rows("evaluation data", job.eval_data(), facts);
  if (job.eval_data().examples.empty()) return;
  facts.rows.emplace_back(
      "evaluation data",
      fmt::format("{} other examples of the same file{}", job.eval_data().examples.size(),
                  job.train_data().files.size() > 1 ? "s" : ""));
}

// What the examples of usage begin with: where they run.
std::string usage_heading(const CardFacts& facts) {
  const std::string text = "## Use\n\nIn this folder";
  if (!facts.is_lora) return text + ":\n\n";
  const std::string folder = "path/to/" + facts.base.substr(facts.base.rfind('/') + 1);
  return text + fmt::format(", with the base model in `{}`:\n\n```bash\nBASE={}\n```\n\n", folder,
                            is_plain(folder) ? folder : shell_quoted(folder));
}

}  // namespace

std::string base_model_name(const std::string& model_dir) {
  const std::filesystem::path path = std::filesystem::weakly_canonical(model_dir);
  for (const auto& part : path) {
    const std::string name = hub_name_of_cache_folder(part.string());
    if (!name.empty()) return name;
  }
  // What is not there keeps a slash at its end.
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

CardFacts read_card_facts(TrainJob& job, const std::string& fingerprint) {
  const TrainOptions& options = job.options();
  const model::LayerTable& layers = job.engine().model().weights->layers();
  CardFacts facts{
      .base = base_model_name(options.model),
      .is_lora = job.is_lora(),
      .has_experts = has_experts(layers),
      .has_chat_template =
          load_chat_template(texts_with_adapter(job.spec().texts, options.adapter, options.chat),
                             options.chat)
              .has_value(),
      .is_text_part = layers.module_prefix() != "model.",
      .is_in_4bit = options.load_in_4bit};
  const boost::json::object values = boost::json::parse(fingerprint).as_object();
  facts.rows = {
      {"base model", fmt::format("`{}`, hash `{}`", facts.base, recorded_text(values, "model"))}};
  const CheckpointSource* source = job.engine().model().checkpoint.get();
  if (source != nullptr) {
    facts.rows.emplace_back("base weights",
                            "matrices in " + model::base_fingerprint(*source).types);
  }
  add_data_rows(job, facts);
  facts.rows.emplace_back("trained parameters", std::to_string(job.num_trained_parameters()));
  for (const auto& option : values) {
    const std::string name(option.key());
    const std::string value = recorded_text(values, name);
    if (is_listed_in_card(name, value, options)) facts.settings.emplace_back(name, value);
  }
  return facts;
}

std::string model_card_text(const CardFacts& facts, int64_t steps, int64_t num_steps,
                            const CardLosses& losses) {
  std::string out = front_matter(facts);
  out += facts.is_lora ? fmt::format("# LoRA adapter of {}\n\n", facts.base)
                       : fmt::format("# {}, fine-tuned\n\n", facts.base);
  out += "Trained with `strata train`.\n\n";
  std::vector<std::pair<std::string, std::string>> rows = facts.rows;
  rows.emplace_back("steps", fmt::format("{} of {}", steps, num_steps));
  add_loss_rows(losses, rows);
  out += markdown_table("| | |\n", rows);
  out += "## Settings\n\n" + markdown_table("| option | value |\n", facts.settings);
  return out + usage_heading(facts) + strata_usage(facts) + python_usage(facts);
}

}  // namespace strata::apps
