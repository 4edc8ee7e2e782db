// SPDX-License-Identifier: Apache-2.0
#include "trainer/loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/ascii.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/say.h"
#include "base/stop.h"
#include "base/trace.h"
#include "setup/ranks.h"
#include "trainer/curves.h"
#include "trainer/state.h"

namespace strata::apps {
namespace {

namespace fs = std::filesystem;

// The adapters or models of --keep: step-100 in --out.
constexpr const char* kKept = "step-";

// The step of a folder of --keep; nothing for any other name.
std::optional<int64_t> parse_step_folder(const std::string& name) {
  if (!name.starts_with(kKept)) return std::nullopt;
  int64_t step = 0;
  const char* end = name.data() + name.size();
  const auto [rest, fault] =
      std::from_chars(name.data() + std::string_view(kKept).size(), end, step);
  return fault == std::errc() && rest == end ? std::optional(step) : std::nullopt;
}

// Those of the newest `keep` saves stay.
void remove_older_saves(const std::string& out, int64_t keep) {
  std::vector<std::pair<int64_t, fs::path>> kept;
  for (const auto& entry : fs::directory_iterator(out)) {
    if (!entry.is_directory()) continue;
    const std::optional<int64_t> step = parse_step_folder(entry.path().filename().string());
    if (step) kept.emplace_back(*step, entry.path());
  }
  std::sort(kept.begin(), kept.end());
  for (size_t i = 0; i + static_cast<size_t>(keep) < kept.size(); ++i) {
    fs::remove_all(kept[i].second);
  }
}

void check_loss_is_finite(const TrainStep& done) {
  if (std::isfinite(done.loss)) return;
  throw NotFinite(
      fmt::format("step {}: the loss is {}; lower --lr, or use --dtype f32", done.step, done.loss));
}

void write_curves(const std::string& out) {
  write_file_atomic(out + "/loss.svg",
                    training_curves_svg(report::read_metrics(metrics_path(out))));
}

constexpr std::string_view kEvaluation = "eval_";  // begins names of an evaluation's metrics

// `loss`: what came of them all.
PairNumbers numbers_of(const PairScore& score, double loss, const LossChoice& choice) {
  PairNumbers numbers = {score.chosen(), score.rejected(), score.margin(), score.accuracy()};
  if (score.num_nll_tokens == 0) return numbers;
  numbers.nll = score.nll();
  numbers.log_odds_ratio = (score.nll() - loss) / choice.beta;
  return numbers;
}

void add_pair_metrics(const PairNumbers& pairs, bool of_evaluation,
                      std::vector<report::Metric>& metrics) {
  const auto add = [&](std::string_view name, double value) {
    metrics.push_back({name.substr(of_evaluation ? 0 : kEvaluation.size()), value});
  };
  add("eval_rewards/chosen", pairs.chosen);
  add("eval_rewards/rejected", pairs.rejected);
  add("eval_rewards/margins", pairs.margin);
  add("eval_rewards/accuracies", pairs.accuracy);
  if (pairs.nll) add("eval_nll_loss", *pairs.nll);
  if (pairs.log_odds_ratio) add("eval_log_odds_ratio", *pairs.log_odds_ratio);
}

std::optional<PairNumbers> read_pair_metrics(const report::MetricsRecord& record,
                                             std::string_view begin) {
  const auto number = [&](const char* name) {
    return record.number(fmt::format("{}rewards/{}", begin, name));
  };
  if (!std::isfinite(number("accuracies"))) return std::nullopt;
  return PairNumbers{number("chosen"), number("rejected"), number("margins"), number("accuracies")};
}

void add_reward_metrics(const RewardNumbers& rewards, std::vector<report::Metric>& metrics) {
  const report::Metric all[] = {{"reward", rewards.mean},
                                {"reward_std", rewards.deviation},
                                {"frac_reward_zero_std", rewards.share_equal},
                                {"omitted", rewards.omitted},
                                {"completions/mean_length", rewards.mean_length},
                                {"completions/clipped_ratio", rewards.share_cut},
                                {"ratio/min", rewards.least_ratio},
                                {"ratio/max", rewards.most_ratio},
                                {"seconds/sampling", rewards.sampling_seconds},
                                {"seconds/reward", rewards.reward_seconds},
                                {"seconds/training", rewards.training_seconds}};
  metrics.insert(metrics.end(), std::begin(all), std::end(all));
}

}  // namespace

std::string metrics_path(const std::string& out) { return out + "/metrics.jsonl"; }

TrainLoop::TrainLoop(TrainJob& job, std::string fingerprint,
                     const std::optional<Predicted>& predicted, TrainSampler* sampler, bool shows)
    : job_(job),
      sampler_(sampler),
      shows_(shows),
      predicted_(predicted),
      fingerprint_(std::move(fingerprint)),
      save_every_(parse_save_every(job.options().save_every)),
      begin_(now_seconds()),
      last_save_(begin_) {
  if (!job.is_first_rank()) return;
  open_logs();
  if (shows_) {
    progress_.emplace(report::ProgressOptions{
        .label = "train", .total = job.num_steps(), .start = job.steps_done()});
  }
  card_ = read_card_facts(job, fingerprint_);
  if (job.steps_done() > 0) restore_losses_from_log();
}

void TrainLoop::open_logs() {
  const TrainSettings& settings = job_.settings();
  const int64_t done = job_.steps_done();
  log_.emplace(report::MetricsLog::resume(metrics_path(settings.out), done));
  if (!job_.options().samples.empty())
    samples_.emplace(report::MetricsLog::resume(settings.out + "/samples.jsonl", done));
  if (!settings.tensorboard.empty()) {
    events_.emplace(settings.tensorboard);
    if (done > 0) events_->start_at(done + 1);
  }
}

bool TrainLoop::run() {
  start();
  while (!is_done()) run_next_step();
  return finish_run();
}

void TrainLoop::start() {
  if (job_.steps_done() > 0) return;
  run_evaluation(0);
  stops_ = decide_next_action() == NextAction::kStop;
}

bool TrainLoop::is_done() const {
  return stops_ || job_.steps_done() >= job_.num_steps() || ends_early();
}

void TrainLoop::run_next_step() {
  run_logged_step();
  const int64_t step = job_.steps_done();
  if (is_evaluation_step(step, job_.num_steps(), job_.options().eval_every)) run_evaluation(step);
  if (is_done()) return;
  const NextAction now = decide_next_action();
  stops_ = now == NextAction::kStop;
  if (now == NextAction::kSave) save_checkpoint(/*keeps_folder=*/true);
}

bool TrainLoop::finish_run() {
  if (stops_) {
    save_at_stop();
    return false;
  }
  // Also where a resumed run had nothing left to do: the export may be what a kill prevented.
  save_checkpoint(/*keeps_folder=*/true);
  gather_costs_of_ranks();
  if (progress_) progress_->finish(progress_text());
  return true;
}

bool TrainLoop::keeps_best() const { return job_.options().keep_best.value_or(true); }

bool TrainLoop::ends_early() const {
  const int64_t most = job_.options().early_stop;
  return most > 0 && job_.evaluations().since_lowest >= most;
}

TrainLoop::NextAction TrainLoop::due_action() const {
  if (StopSignals::asked()) return NextAction::kStop;
  const bool by_steps = save_every_.steps > 0 && job_.steps_done() % save_every_.steps == 0;
  const bool by_time = save_every_.seconds > 0 && now_seconds() - last_save_ >= save_every_.seconds;
  return by_steps || by_time ? NextAction::kSave : NextAction::kNone;
}

TrainLoop::NextAction TrainLoop::decide_next_action() {
  const NextAction own = job_.is_first_rank() ? due_action() : NextAction::kNone;
  return static_cast<NextAction>(
      static_cast<int>(job_.broadcast_from_first_rank(static_cast<double>(own))));
}

// A command that rates nothing ends the run, which goes on from here once it is mended.
TrainStep TrainLoop::make_step() {
  try {
    return job_.step();
  } catch (const reward::RewardFailed&) {
    if (job_.steps_done() > 0) save_checkpoint(/*keeps_folder=*/false);
    throw;
  }
}

void TrainLoop::run_logged_step() {
  const TraceSpan span("step", "step", job_.steps_done() + 1);
  const double begin = now_seconds();
  const TrainStep done = make_step();
  const double seconds = now_seconds() - begin;
  note_for_summary(done, seconds);
  update_peak_memory();
  check_loss_is_finite(done);
  log_step(done, seconds);
}

void TrainLoop::note_for_summary(const TrainStep& done, double seconds) {
  busy_seconds_ += seconds;
  tokens_ += done.tokens;
  ++num_steps_;
  loss_ = done.loss;
  mtp_loss_ = done.mtp_loss;
  indexer_loss_ = done.indexer_loss;
  if (done.pairs) pairs_ = numbers_of(*done.pairs, done.loss, job_.options().loss);
  if (!done.rewards) return;
  rewards_ = done.rewards;
  reward_totals_.omitted += rewards_->omitted;
  reward_totals_.sampling_seconds += rewards_->sampling_seconds;
  reward_totals_.reward_seconds += rewards_->reward_seconds;
  reward_totals_.training_seconds += rewards_->training_seconds;
}

void TrainLoop::log_step(const TrainStep& done, double seconds) {
  if (!log_) return;
  std::vector<report::Metric> metrics = {
      {"epoch", done.epoch},
      {"loss", done.loss},
      {"lr", done.lr},
      {"grad_norm", done.grad_norm},
      {"tokens", done.tokens},
      {"trained_tokens", done.trained_tokens},
      {"tokens_per_s", static_cast<double>(done.tokens) / seconds}};
  if (done.mtp_loss) metrics.push_back({"mtp_loss", *done.mtp_loss});
  if (done.indexer_loss) metrics.push_back({"indexer_loss", *done.indexer_loss});
  if (pairs_) add_pair_metrics(*pairs_, /*of_evaluation=*/false, metrics);
  if (done.rewards) add_reward_metrics(*done.rewards, metrics);
  log_->append(done.step, metrics);
  if (events_) events_->append(done.step, metrics);
  if (progress_) progress_->update(done.step, progress_text());
}

void TrainLoop::run_evaluation(int64_t step) {
  const TraceSpan span("evaluate", "step", step);
  log_samples(step);
  const double loss = job_.evaluate();
  last_eval_.reset();
  if (!std::isfinite(loss)) return;
  if (!first_eval_) first_eval_ = loss;
  last_eval_ = loss;
  if (job_.evaluated_pairs())
    last_eval_pairs_ = numbers_of(*job_.evaluated_pairs(), loss, job_.options().loss);
  if (!first_eval_pairs_) first_eval_pairs_ = last_eval_pairs_;
  log_evaluation(step, loss);
  // Before the first step there is nothing that was trained.
  if (step == 0 || !job_.evaluations().record_evaluation(step, loss)) return;
  if (!keeps_best()) return;
  export_with_card(job_.settings().out + "/best");
  job_.evaluations().kept_step = step;
}

void TrainLoop::log_evaluation(int64_t step, double loss) {
  std::vector<report::Metric> metrics = {{"eval_loss", loss}};
  if (job_.options().loss.of_rewards()) metrics = {{"eval_reward", -loss}};
  if (last_eval_pairs_) add_pair_metrics(*last_eval_pairs_, /*of_evaluation=*/true, metrics);
  if (log_) log_->append(step, metrics);
  if (events_) events_->append(step, metrics);
}

void TrainLoop::export_with_card(const std::string& dir) {
  job_.export_to(dir);
  write_card(dir);
}

void TrainLoop::log_samples(int64_t step) {
  if (sampler_ == nullptr) return;
  const TraceSpan span("sample", "step", step);
  for (const Sample& sample : sampler_->answer_prompts(job_.pipeline(), job_.slot())) {
    if (!samples_) return;  // every rank has a part in them, and the first one tells
    samples_->append(step, {{"prompt", sample.prompt}, {"text", sample.text}});
    if (!progress_) continue;
    progress_->print(fmt::format("step {}, {} -> {}", step, sample.prompt, sample.text));
  }
}

void TrainLoop::sync_logs() {
  if (log_) log_->sync();
  if (samples_) samples_->sync();
  if (events_) events_->sync();
}

void TrainLoop::save_checkpoint(bool keeps_folder) {
  const std::string& out = job_.settings().out;
  const int64_t kept = job_.options().keep;
  const TraceSpan span("save", "step", job_.steps_done());
  sync_logs();
  // Before the state: a run that is killed in between goes on from an older one, and writes it
  // again.
  const bool to_folder = keeps_folder && kept > 0;
  if (to_folder) export_with_card(fmt::format("{}/{}{}", out, kKept, job_.steps_done()));
  save_run(job_, fingerprint_);
  write_card(out);
  last_save_ = now_seconds();
  if (!job_.is_first_rank()) return;
  if (to_folder) remove_older_saves(out, kept);
  write_curves(out);
}

void TrainLoop::write_card(const std::string& dir) const {
  if (!card_) return;
  CardLosses losses = {loss_, mtp_loss_, indexer_loss_, first_eval_, last_eval_};
  losses.of_pairs = job_.options().loss.of_pairs();
  if (rewards_) losses.reward = rewards_->mean;
  if (first_eval_pairs_ && last_eval_pairs_)
    losses.accuracies = {first_eval_pairs_->accuracy, last_eval_pairs_->accuracy};
  write_file_atomic(dir + "/README.md",
                    model_card_text(*card_, job_.steps_done(), job_.num_steps(), losses));
}

// Only what a run has anyway: no folder of --keep, so that a run that is stopped and resumed has
// those of one that was not.
void TrainLoop::save_at_stop() {
  if (job_.steps_done() > 0) save_checkpoint(/*keeps_folder=*/false);
  if (!job_.is_first_rank()) return;
  progress_.reset();  // the bar's line ends
  if (job_.steps_done() == 0) {
    say("stopped before the first step; nothing is saved\n");
  } else {
    say(fmt::format("saved at step {}; continue with: strata train --resume --out {}\n",
                    job_.steps_done(), shell_word(job_.settings().out)));
    write_report();
  }
}

void TrainLoop::update_peak_memory() {
  const ProcessMemory memory = read_process_memory();
  peak_.anonymous =
      std::max(peak_.anonymous, memory.anonymous + job_.pipeline().shared_weight_bytes());
  peak_.files = std::max(peak_.files, memory.files);
}

void TrainLoop::gather_costs_of_ranks() {
  if (job_.options().stages.ranks.empty()) return;
  sum_peaks_by_process(gather_peaks());
  sent_ = gather_sent(job_.pipeline().comm(), job_.sent());
}

std::vector<ProcessMemory> TrainLoop::gather_peaks() {
  Comm& comm = job_.pipeline().comm();
  const ProcessMemory own = peak_of_rank();
  std::vector<double> all;  // two of each rank
  comm.all_gather(std::array{static_cast<double>(own.anonymous), static_cast<double>(own.files)},
                  all);
  std::vector<ProcessMemory> peaks;
  for (auto of_rank = all.begin(); of_rank != all.end(); of_rank += 2) {
    ProcessMemory& peak = peaks.emplace_back();
    peak.anonymous = static_cast<int64_t>(of_rank[0]);
    peak.files = static_cast<int64_t>(of_rank[1]);
  }
  return peaks;
}

ProcessMemory TrainLoop::peak_of_rank() {
  if (process_ranks(job_.settings().stages).thread_of(job_.pipeline().comm().rank()) == 0)
    return peak_;
  ProcessMemory shared = {};
  shared.anonymous = job_.pipeline().shared_weight_bytes();
  return shared;
}

void TrainLoop::sum_peaks_by_process(const std::vector<ProcessMemory>& of_ranks) {
  const ProcessRanks ranks = process_ranks(job_.settings().stages);
  peak_ = {};
  memory_.resize(of_ranks.size());
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    const int first = ranks.rank_of(ranks.process_of(static_cast<int>(rank)), 0);
    std::optional<RankMemory>& process = memory_[static_cast<size_t>(first)];
    if (!process) process.emplace();
    process->peak += of_ranks[rank].anonymous;
    if (predicted_) process->planned += predicted_->memory[rank];
    peak_.anonymous += of_ranks[rank].anonymous;
    peak_.files += of_ranks[rank].files;
  }
}

void TrainLoop::restore_losses_from_log() {
  for (const report::MetricsRecord& record :
       report::read_metrics(metrics_path(job_.settings().out))) {
    const double loss = record.number("loss"), eval_reward = record.number("eval_reward");
    const double eval_loss = std::isfinite(eval_reward) ? -eval_reward : record.number("eval_loss");
    if (std::isfinite(record.number("reward")))
      rewards_ = RewardNumbers{.mean = record.number("reward"),
                               .deviation = record.number("reward_std"),
                               .share_equal = record.number("frac_reward_zero_std")};
    if (std::isfinite(loss)) loss_ = loss;
    if (std::isfinite(record.number("mtp_loss"))) mtp_loss_ = record.number("mtp_loss");
    const double indexer_loss = record.number("indexer_loss");
    if (std::isfinite(indexer_loss)) indexer_loss_ = indexer_loss;
    if (const auto pairs = read_pair_metrics(record, "")) pairs_ = pairs;
    if (!std::isfinite(eval_loss)) continue;
    if (!first_eval_) first_eval_ = eval_loss;
    last_eval_ = eval_loss;
    if (const auto pairs = read_pair_metrics(record, kEvaluation)) last_eval_pairs_ = pairs;
    if (!first_eval_pairs_) first_eval_pairs_ = last_eval_pairs_;
  }
}

LossCourse TrainLoop::loss_course() const {
  LossCourse course = read_training_course(report::read_metrics(metrics_path(job_.settings().out)));
  course.vocab_size = job_.engine().config().vocab_size;
  course.of_pairs = job_.options().loss.of_pairs();
  if (!first_eval_ || !last_eval_) return course;
  course.before = *first_eval_;
  course.after = *last_eval_;
  course.is_evaluated = true;
  course.lowest = job_.evaluations().lowest;
  course.lowest_step = job_.evaluations().lowest_step;
  return course;
}

}  // namespace strata::apps
