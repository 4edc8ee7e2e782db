#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>

#include "apps/train/loop.h"
#include "apps/train/state.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/trace.h"
#include "report/format.h"
#include "report/svg_curve.h"
#include "report/table.h"

namespace strata::apps {
namespace {

constexpr int64_t kNumEvals = 10;  // over the run, beside the one before it

int64_t peak_rss_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;  // Linux counts KiB
}

// A loss as people compare models by it.
std::string perplexity_text(double loss) { return fmt::format("{:.4g}", std::exp(loss)); }

void write_curve(const TrainOptions& options) {
  report::CurveSeries step{.name = "step", .faint = true};
  report::CurveSeries eval{.name = "evaluation", .markers = true};
  for (const report::MetricsRecord& record : report::read_metrics(metrics_path(options))) {
    const double loss = record.number("loss"), eval_loss = record.number("eval_loss");
    if (std::isfinite(loss)) {
      step.x.push_back(static_cast<double>(record.step));
      step.y.push_back(loss);
    }
    if (std::isfinite(eval_loss)) {
      eval.x.push_back(static_cast<double>(record.step));
      eval.y.push_back(eval_loss);
    }
  }
  const double span = std::clamp(static_cast<double>(step.x.size()) / 50, 1.0, 15.0);
  report::CurveSeries smooth{
      .name = "training (smoothed)", .x = step.x, .y = report::smoothed(step.y, span)};
  report::CurveChart chart{.title = "loss", .x_label = "step", .y_label = "nats per token"};
  chart.series = {std::move(step), std::move(smooth)};
  if (!eval.x.empty()) chart.series.push_back(std::move(eval));
  // Over a wide range the end of a run would be a flat line.
  const auto [low, high] = std::minmax_element(chart.series[0].y.begin(), chart.series[0].y.end());
  chart.log_y = low != chart.series[0].y.end() && *low > 0 && *high > 5 * *low;
  write_file_atomic(options.out + "/loss.svg", report::svg_chart(chart));
}

}  // namespace

std::string metrics_path(const TrainOptions& options) { return options.out + "/metrics.jsonl"; }

TrainLoop::TrainLoop(TrainJob& job, std::string fingerprint,
                     const std::optional<Predicted>& predicted)
    : job_(job),
      predicted_(predicted),
      fingerprint_(std::move(fingerprint)),
      begin_(now_seconds()) {
  if (!job.is_first_rank()) return;
  log_.emplace(report::MetricsLog::resume(metrics_path(job.options()), job.steps_done()));
  progress_.emplace(report::ProgressOptions{
      .label = "train", .total = job.num_steps(), .start = job.steps_done()});
  card_ = card_facts(job, fingerprint_);
  if (job.steps_done() > 0) read_back();
}

void TrainLoop::run() {
  if (job_.steps_done() == 0) evaluate(0);
  while (job_.steps_done() < job_.num_steps()) {
    train_step();
    const int64_t step = job_.steps_done();
    const bool is_last = step == job_.num_steps();
    if (is_last || step * kNumEvals / job_.num_steps() > (step - 1) * kNumEvals / job_.num_steps())
      evaluate(step);
    const int64_t every = job_.options().save_every;
    if (!is_last && every > 0 && step % every == 0) save();
  }
  save();  // also where a resumed run had nothing left to do: the export may be what a kill
           // prevented
  if (progress_) progress_->finish(note());
}

void TrainLoop::train_step() {
  const TraceSpan span("step", "step", job_.steps_done() + 1);
  const double begin = now_seconds();
  const TrainStep done = job_.step();
  const double seconds = now_seconds() - begin;
  busy_seconds_ += seconds;
  tokens_ += done.tokens;
  ++num_steps_;
  note_memory();
  loss_ = done.loss;
  mtp_loss_ = done.mtp_loss;
  indexer_loss_ = done.indexer_loss;
  if (!std::isfinite(done.loss)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("step {}: the loss is {}; lower --lr, or use --dtype f32", done.step,
                            done.loss));
  }
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
  log_->append(done.step, metrics);
  progress_->update(done.step, note());
}

void TrainLoop::evaluate(int64_t step) {
  const TraceSpan span("evaluate", "step", step);
  const double loss = job_.evaluate();
  if (!std::isfinite(loss)) return;
  if (!first_eval_) first_eval_ = loss;
  last_eval_ = loss;
  if (log_) log_->append(step, {{"eval_loss", loss}});
}

void TrainLoop::save() {
  const TraceSpan span("save", "step", job_.steps_done());
  if (log_) log_->sync();
  save_train_state(job_, fingerprint_);
  if (!card_) return;
  const CardLosses losses = {loss_, mtp_loss_, indexer_loss_, first_eval_, last_eval_};
  write_file_atomic(job_.options().out + "/README.md",
                    model_card(*card_, job_.steps_done(), job_.num_steps(), losses));
  write_curve(job_.options());
}

void TrainLoop::note_memory() {
  const ProcessMemory memory = process_memory();
  peak_.anonymous = std::max(peak_.anonymous, memory.anonymous);
  peak_.files = std::max(peak_.files, memory.files);
}

void TrainLoop::read_back() {
  for (const report::MetricsRecord& record : report::read_metrics(metrics_path(job_.options()))) {
    const double loss = record.number("loss"), eval_loss = record.number("eval_loss");
    if (std::isfinite(loss)) loss_ = loss;
    if (std::isfinite(record.number("mtp_loss"))) mtp_loss_ = record.number("mtp_loss");
    const double indexer_loss = record.number("indexer_loss");
    if (std::isfinite(indexer_loss)) indexer_loss_ = indexer_loss;
    if (!std::isfinite(eval_loss)) continue;
    if (!first_eval_) first_eval_ = eval_loss;
    last_eval_ = eval_loss;
  }
}

double TrainLoop::tokens_per_second() const {
  return busy_seconds_ > 0 ? static_cast<double>(tokens_) / busy_seconds_ : 0;
}
std::string TrainLoop::note() const {
  std::string text = fmt::format("loss {:.4f}", loss_);
  if (mtp_loss_) text += fmt::format("  mtp {:.4f}", *mtp_loss_);
  if (indexer_loss_) text += fmt::format("  indexer {:.4f}", *indexer_loss_);
  if (last_eval_) text += fmt::format("  eval {:.4f}", *last_eval_);
  return text + fmt::format("  {} tok/s  {}", report::format_count(tokens_per_second()),
                            report::format_bytes(peak_.anonymous));
}

void TrainLoop::print_summary() const {
  const TrainOptions& options = job_.options();
  report::Table table({{""}, {""}});
  table.add_row({"training loss", fmt::format("{:.4f} nats per token (last step)", loss_)});
  if (mtp_loss_) {
    table.add_row({"mtp loss", fmt::format("{:.4f} nats per token (last step), times {}",
                                           *mtp_loss_, job_.mtp_weight())});
  }
  if (indexer_loss_) {
    table.add_row(
        {"indexer loss",
         fmt::format("{:.4f} nats per token and layer with an indexer (last step), times {}",
                     *indexer_loss_, options.indexer_loss)});
  }
  if (first_eval_ && last_eval_) {
    table.add_row(
        {"evaluation loss", fmt::format("{:.4f} -> {:.4f} nats per token ({:+.1f} %)", *first_eval_,
                                        *last_eval_, 100 * (*last_eval_ / *first_eval_ - 1))});
    table.add_row({"perplexity", fmt::format("{} -> {} (evaluation)", perplexity_text(*first_eval_),
                                             perplexity_text(*last_eval_))});
  }
  const double step = num_steps_ > 0 ? busy_seconds_ / static_cast<double>(num_steps_) : 0;
  std::string time = fmt::format("{}, {} tokens/s in steps; a step {:.3g} s",
                                 report::format_duration(now_seconds() - begin_),
                                 report::format_count(tokens_per_second()), step);
  std::string memory = report::format_bytes(peak_.anonymous) + " at the peak";
  if (predicted_) {
    time += fmt::format(", {:.3g} predicted", predicted_->step_seconds);
    memory += fmt::format(", {} planned", report::format_bytes(predicted_->memory));
  }
  table.add_row({"time", time});
  table.add_row({"memory", fmt::format("{}; {} mapped from files beside it", memory,
                                       report::format_bytes(peak_.files))});
  table.add_row({"saved", fmt::format("{} ({}, README.md, metrics.jsonl, loss.svg, trainer/)",
                                      options.out, job_.is_lora() ? "PEFT adapter" : "model")});
  fmt::print(stderr, "{}", table.text());
  if (!options.json) return;
  const auto number = [](const std::optional<double>& value) {
    return value && std::isfinite(*value) ? fmt::format("{}", *value) : std::string("null");
  };
  fmt::print(
      "{{\"steps\":{},\"loss\":{},\"eval_loss_before\":{},\"eval_loss\":{},\"tokens_per_s\":{:.1f},"
      "\"peak_rss_gib\":{:.4f},\"peak_bytes\":{},\"planned_bytes\":{},\"step_seconds\":{:.6g},"
      "\"predicted_step_seconds\":{}}}\n",
      job_.steps_done(), number(loss_), number(first_eval_), number(last_eval_),
      tokens_per_second(), static_cast<double>(peak_rss_bytes()) / (1 << 30), peak_.anonymous,
      predicted_ ? std::to_string(predicted_->memory) : "null", step,
      predicted_ ? fmt::format("{:.6g}", predicted_->step_seconds) : "null");
}

}  // namespace strata::apps
