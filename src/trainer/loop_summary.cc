// SPDX-License-Identifier: Apache-2.0
// What a TrainLoop (trainer/loop.h) says of its run: next to the bar, and at the end.
#include <fmt/format.h>
#include <sys/resource.h>

#include <cmath>

#include "base/ascii.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/log.h"
#include "base/say.h"
#include "report/format.h"
#include "report/table.h"
#include "setup/sent_text.h"
#include "text/json_reader.h"
#include "trainer/loop.h"
#include "trainer/report_page.h"

namespace strata::apps {
namespace {

int64_t peak_rss_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;  // Linux counts KiB
}

// A loss as people compare models by it.
std::string perplexity_text(double loss) { return fmt::format("{:.4g}", std::exp(loss)); }

using Commands = std::vector<std::pair<std::string, std::string>>;

Commands commands_to_go_on(const TrainOptions& o, const CardFacts& facts, bool is_over) {
  const std::string out = shell_word(o.out), base = shell_word(o.model);
  Commands commands;
  if (!is_over)
    commands.emplace_back("Go on training from the last save:",
                          fmt::format("strata train --resume --out {}", out));
  std::string model = out, served = out;
  if (facts.is_lora) {
    const std::string loaded = facts.is_in_4bit ? shell_word(o.out + "-base") : base;
    model = fmt::format("{} --adapter {}", loaded, out);
    served = fmt::format("{} --adapter trained={}", loaded, out);
    if (facts.is_in_4bit)
      commands.emplace_back("Keep the base in 4 bits, as it was trained with:",
                            fmt::format("strata convert {} --type nf4 --out {}", base, loaded));
  }
  commands.emplace_back("Try it:",
                        facts.has_chat_template
                            ? fmt::format("strata chat --model {}", model)
                            : fmt::format("strata generate --model {} --prompt \"Hello\"", model));
  commands.emplace_back("Serve it to OpenAI's clients:", fmt::format("strata serve {}", served));
  if (is_over)
    commands.emplace_back("Train on from it:",
                          fmt::format("strata train --model {} --data FILE --out {}", model,
                                      shell_word(o.out + "-2")));
  return commands;
}

// Where no answer has a reward their mean is no number.
std::string mean_reward_text(double mean) {
  return std::isfinite(mean) ? fmt::format("{:.4f}", mean) : "none";
}

int64_t total_of(const std::vector<engine::SentBytes>& of_ranks) {
  int64_t total = 0;
  for (const engine::SentBytes& sent : of_ranks) total += sent.total();
  return total;
}

}  // namespace

double TrainLoop::step_seconds() const {
  return num_steps_ > 0 ? busy_seconds_ / static_cast<double>(num_steps_) : 0;
}

double TrainLoop::tokens_per_second() const {
  return busy_seconds_ > 0 ? static_cast<double>(tokens_) / busy_seconds_ : 0;
}
std::string TrainLoop::progress_text() const {
  std::string text =
      rewards_ ? "reward " + mean_reward_text(rewards_->mean) : fmt::format("loss {:.4f}", loss_);
  if (mtp_loss_) text += fmt::format("  mtp {:.4f}", *mtp_loss_);
  if (indexer_loss_) text += fmt::format("  indexer {:.4f}", *indexer_loss_);
  if (pairs_) text += fmt::format("  margin {:.3f}", pairs_->margin);
  if (last_eval_) text += fmt::format("  eval {:.4f}", rewards_ ? -*last_eval_ : *last_eval_);
  if (last_eval_ && last_eval_pairs_)
    text += fmt::format("  right {:.0f} %", 100 * last_eval_pairs_->accuracy);
  if (num_steps_ > 0) text += fmt::format("  {} tok/s", report::format_count(tokens_per_second()));
  return text + "  " + report::format_bytes(peak_.anonymous);
}

void TrainLoop::add_pair_rows(report::Table& table) const {
  table.add_row({"training loss", fmt::format("{:.4f} per pair (last step)", loss_)});
  table.add_row(
      {"rewards", fmt::format("chosen {:+.3f}, rejected {:+.3f}, margin {:+.3f} (last step)",
                              pairs_->chosen, pairs_->rejected, pairs_->margin)});
  if (pairs_->nll)
    table.add_row({"chosen answers", fmt::format("{:.4f} nats per token with their prompts (last "
                                                 "step)",
                                                 *pairs_->nll)});
  if (!first_eval_ || !last_eval_ || !first_eval_pairs_ || !last_eval_pairs_) return;
  table.add_row(
      {"evaluation loss", fmt::format("{:.4f} -> {:.4f} per pair", *first_eval_, *last_eval_)});
  table.add_row({"margin", fmt::format("{:+.3f} -> {:+.3f} (evaluation)", first_eval_pairs_->margin,
                                       last_eval_pairs_->margin)});
  table.add_row({"accuracy",
                 fmt::format("{:.1f} % -> {:.1f} % of pairs (evaluation)",
                             100 * first_eval_pairs_->accuracy, 100 * last_eval_pairs_->accuracy)});
  add_best_row(table);
}

void TrainLoop::add_reward_rows(report::Table& table) const {
  table.add_row({"reward", fmt::format("{} +- {:.4f}, {:.0f} % of groups equal (last step)",
                                       mean_reward_text(rewards_->mean), rewards_->deviation,
                                       100 * rewards_->share_equal)});
  if (first_eval_ && last_eval_) {
    table.add_row(
        {"evaluation reward", fmt::format("{:.4f} -> {:.4f}", -*first_eval_, -*last_eval_)});
    add_best_row(table);
  }
  if (num_steps_ == 0) return;
  table.add_row({"omitted", fmt::format("{} answers without a reward", reward_totals_.omitted)});
  table.add_row(
      {"steps' time", fmt::format("{} sampling, {} waiting for rewards, {} training",
                                  report::format_seconds(reward_totals_.sampling_seconds),
                                  report::format_seconds(reward_totals_.reward_seconds),
                                  report::format_seconds(reward_totals_.training_seconds))});
}

void TrainLoop::add_loss_rows(report::Table& table) const {
  if (pairs_) return add_pair_rows(table);
  if (rewards_) return add_reward_rows(table);
  table.add_row({"training loss", fmt::format("{:.4f} nats per token (last step)", loss_)});
  if (mtp_loss_) {
    table.add_row({"mtp loss", fmt::format("{:.4f} nats per token (last step), times {}",
                                           *mtp_loss_, job_.mtp_weight())});
  }
  if (indexer_loss_) {
    table.add_row(
        {"indexer loss",
         fmt::format("{:.4f} nats per token and layer with an indexer (last step), times {}",
                     *indexer_loss_, job_.options().indexer_loss)});
  }
  if (!first_eval_ || !last_eval_) return;
  table.add_row(
      {"evaluation loss", fmt::format("{:.4f} -> {:.4f} nats per token ({:+.1f} %)", *first_eval_,
                                      *last_eval_, 100 * (*last_eval_ / *first_eval_ - 1))});
  table.add_row({"perplexity", fmt::format("{} -> {} (evaluation)", perplexity_text(*first_eval_),
                                           perplexity_text(*last_eval_))});
  add_best_row(table);
}

void TrainLoop::add_best_row(report::Table& table) const {
  const Evaluations& evaluations = job_.evaluations();
  const bool is_last = evaluations.lowest_step == job_.steps_done();
  const bool is_kept = keeps_best() && evaluations.kept_step == evaluations.lowest_step;
  if (!evaluations.lowest || (is_last && !is_kept)) return;
  const std::string loss =
      rewards_ ? fmt::format("reward {:.4f}", -*evaluations.lowest)
      : pairs_ ? fmt::format("{:.4f} per pair", *evaluations.lowest)
               : fmt::format("{:.4f} nats per token, perplexity {}", *evaluations.lowest,
                             perplexity_text(*evaluations.lowest));
  table.add_row({"best", fmt::format("{}, at step {}{}", loss, evaluations.lowest_step,
                                     is_kept ? ": best/" : "")});
}

void TrainLoop::add_cost_rows(report::Table& table) const {
  if (num_steps_ == 0) {
    table.add_row({"time", "no step was left to do"});
    return;
  }
  std::string time = fmt::format(
      "{}, {} tokens/s in steps; a step {}", report::format_duration(now_seconds() - begin_),
      report::format_count(tokens_per_second()), report::format_seconds(step_seconds()));
  std::string memory = report::format_bytes(peak_.anonymous) + " at the peak";
  if (predicted_) {
    time += fmt::format(", {} predicted", report::format_seconds(predicted_->step_seconds));
    memory += fmt::format(", {} planned", report::format_bytes(predicted_->memory_in_all()));
  }
  table.add_row({"time", time});
  table.add_row({"memory", fmt::format("{}; plus {} mapped from files", memory,
                                       report::format_bytes(peak_.files))});
  if (!sent_.empty()) add_sent_row(table);
}

void TrainLoop::add_sent_row(report::Table& table) const {
  table.add_row(
      {"sent", fmt::format("{} a step by all ranks, {} planned",
                           report::format_bytes(total_of(sent_) / num_steps_),
                           report::format_bytes(total_of(job_.planned_sent()) / num_steps_))});
}

void TrainLoop::print_summary() const {
  if (ends_early() && job_.steps_done() < job_.num_steps()) {
    say(fmt::format("stopped early at step {} of {}: no new {} in {} evaluations\n",
                    job_.steps_done(), job_.num_steps(),
                    rewards_ ? "highest evaluation reward" : "lowest evaluation loss",
                    job_.evaluations().since_lowest));
  }
  report::Table table({{""}, {""}});
  add_loss_rows(table);
  add_cost_rows(table);
  table.add_row(
      {"saved", fmt::format("{} ({}, README.md, metrics.jsonl, loss.svg, trainer/)",
                            job_.settings().out, job_.is_lora() ? "PEFT adapter" : "model")});
  say(table.text());
  if (const std::string wrong = verdict(); !wrong.empty()) log(LogLevel::kWarning, wrong);
  write_report();
  if (job_.options().json) print_json();
}

std::string TrainLoop::verdict() const {
  if (rewards_) return reward_verdict_text(report::read_metrics(metrics_path(job_.settings().out)));
  return verdict_text(loss_course(), job_.settings().lr);
}

void TrainLoop::write_report() const {
  const TrainOptions& o = job_.options();
  if (o.report.empty()) return;
  report::Table outcome({{""}, {""}}), costs({{""}, {""}});
  const bool is_over = !stops_;
  outcome.add_row({"steps", fmt::format("{} of {}{}", job_.steps_done(), job_.num_steps(),
                                        is_over ? "" : ", stopped by a signal")});
  add_loss_rows(outcome);
  add_cost_rows(costs);
  RunReport run = {.title = fmt::format("{}: {} of {}", job_.settings().out, o.method, card_->base),
                   .verdict = verdict(),
                   .outcome = outcome.rows(),
                   .costs = costs.rows(),
                   .commands = commands_to_go_on(o, *card_, is_over),
                   .samples = read_samples(job_.settings().out + "/samples.jsonl")};
  for (const auto& rows : {card_->rows, card_->settings}) {
    for (const auto& [name, value] : rows) run.settings.push_back({name, value});
  }
  write_file_atomic(o.report,
                    report_page(run, report::read_metrics(metrics_path(job_.settings().out))));
  say(fmt::format("report: {}\n", o.report));
}

void TrainLoop::print_json() const {
  std::string sent;
  if (!sent_.empty() && num_steps_ > 0) {
    sent = fmt::format(",\"sent_bytes\":{},\"ranks\":{}", sent_json(sent_),
                       sent_by_rank_json(sent_, job_.planned_sent(), memory_));
  }
  std::string of_kind;  // what losses of this kind have
  std::optional<double> eval_before = first_eval_, eval_after = last_eval_;
  if (rewards_) {
    for (std::optional<double>* value : {&eval_before, &eval_after}) {
      if (*value) *value = -**value;
    }
    of_kind = fmt::format(
        ",\"eval_reward_before\":{},\"eval_reward\":{},\"reward\":{},\"omitted\":{},\"sampling_"
        "seconds\":{:.6g},"
        "\"reward_seconds\":{:.6g},\"training_seconds\":{:.6g}",
        text::json_optional_number(eval_before), text::json_optional_number(eval_after),
        text::json_optional_number(rewards_->mean), reward_totals_.omitted,
        reward_totals_.sampling_seconds, reward_totals_.reward_seconds,
        reward_totals_.training_seconds);
    eval_before.reset();
    eval_after.reset();
  }
  if (last_eval_ && first_eval_pairs_ && last_eval_pairs_) {
    of_kind = fmt::format(",\"eval_accuracy_before\":{},\"eval_accuracy\":{},\"eval_margin\":{}",
                          first_eval_pairs_->accuracy, last_eval_pairs_->accuracy,
                          last_eval_pairs_->margin);
  }
  print_result(fmt::format(
      "{{\"steps\":{},\"loss\":{},\"eval_loss_before\":{},\"eval_loss\":{},\"tokens_per_s\":{:.1f},"
      "\"peak_rss_gib\":{:.4f},\"peak_bytes\":{},\"planned_bytes\":{},\"step_seconds\":{:.6g},"
      "\"predicted_step_seconds\":{}{}{}}}\n",
      job_.steps_done(), text::json_optional_number(loss_), text::json_optional_number(eval_before),
      text::json_optional_number(eval_after), tokens_per_second(),
      static_cast<double>(peak_rss_bytes()) / (1 << 30), peak_.anonymous,
      predicted_ ? std::to_string(predicted_->memory_in_all()) : "null", step_seconds(),
      predicted_ ? fmt::format("{:.6g}", predicted_->step_seconds) : "null", of_kind, sent));
}

}  // namespace strata::apps
