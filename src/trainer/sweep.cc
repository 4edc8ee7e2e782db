// SPDX-License-Identifier: Apache-2.0
#include "trainer/sweep.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "backend/thread_comm.h"
#include "base/ascii.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/say.h"
#include "base/stop.h"
#include "report/format.h"
#include "report/svg_curve.h"
#include "report/table.h"
#include "setup/adapter_texts.h"
#include "text/json_reader.h"
#include "trainer/curves.h"
#include "trainer/recipe.h"
#include "trainer/settings.h"
#include "trainer/start.h"
#include "trainer/state.h"

namespace strata::apps {
namespace {

// One learning rate.
struct Member {
  const JobStart& start;
  std::unique_ptr<TrainJob> job = nullptr;
  std::string fingerprint = {};  // of the job
  std::unique_ptr<TrainLoop> loop = nullptr;
  bool diverged = false;  // and has ended where its numbers were no longer finite
};

// They take turns with the first one's gradients.
void make_jobs(std::vector<Member>& members, const TrainRun& run,
               const std::shared_ptr<engine::Runner>& pipeline, const TrainData& data) {
  for (Member& member : members) {
    member.job = std::make_unique<TrainJob>(member.start.settings, run, pipeline, data,
                                            members.front().job.get());
  }
}

void make_loops(std::vector<Member>& members, const std::optional<Predicted>& predicted,
                TrainSampler* sampler) {
  for (Member& member : members) {
    member.loop = std::make_unique<TrainLoop>(*member.job, member.fingerprint, predicted, sampler,
                                              /*shows=*/false);
  }
}

int64_t steps_done_of(const std::vector<Member>& members) {
  int64_t steps = 0;
  for (const Member& member : members) steps += member.job->steps_done();
  return steps;
}

// Makes the member's next step, or marks it as diverged where a loss is not finite.
void advance_member(Member& member) {
  try {
    member.loop->run_next_step();
  } catch (const NotFinite& fault) {
    member.diverged = true;
    log(LogLevel::kWarning,
        fmt::format("lr {}: {}; the other rates go on", member.start.rate, fault.what()));
  }
}

// Makes a step of each member that is not done; false where all are.
bool advance_members(std::vector<Member>& members, report::Progress& progress) {
  bool advances = false;
  for (Member& member : members) {
    if (member.diverged || member.loop->is_done()) continue;
    advance_member(member);
    advances = true;
    progress.update(steps_done_of(members),
                    fmt::format("lr {}  loss {:.4f}", member.start.rate, member.loop->loss()));
  }
  return advances;
}

void request_stop_of_unfinished(std::vector<Member>& members) {
  for (Member& member : members) {
    if (!member.diverged && !member.loop->is_done()) member.loop->request_stop();
  }
}

void train_in_turn(std::vector<Member>& members, const std::string& label) {
  int64_t total = 0;
  for (const Member& member : members) total += member.job->num_steps();
  report::Progress progress({.label = label, .total = total, .start = steps_done_of(members)});
  for (Member& member : members) member.loop->start();
  while (!StopSignals::asked() && advance_members(members, progress)) {
  }
  if (StopSignals::asked()) request_stop_of_unfinished(members);
  progress.finish();
}

std::string loss_text(const std::optional<double>& loss) {
  return loss ? fmt::format("{:.4f}", *loss) : "";
}

std::string perplexity_text(const std::optional<double>& loss) {
  return loss ? fmt::format("{:.4f}", std::exp(*loss)) : "";
}

// The loss that is looked at: of the evaluation, where there is one.
double compared_loss(const Member& member) {
  if (member.diverged) return std::numeric_limits<double>::infinity();
  return member.loop->last_eval().value_or(member.loop->loss());
}

const Member& best_of(const std::vector<Member>& members) {
  return *std::min_element(members.begin(), members.end(), [](const Member& a, const Member& b) {
    return compared_loss(a) < compared_loss(b);
  });
}

std::string verdict_on(const Member& member, const std::vector<Member>& members) {
  if (member.diverged) return "diverged";
  const Verdict verdict = judge(member.loop->loss_course());
  const std::string lowest = &member == &best_of(members) ? "lowest" : "";
  if (verdict == Verdict::kDiverged) return "diverged";
  if (verdict != Verdict::kRose) return lowest;
  return lowest + (lowest.empty() ? "" : ", ") + "worse than before";
}

std::vector<std::vector<std::string>> table_rows_of(const std::vector<Member>& members) {
  std::vector<std::vector<std::string>> rows;
  for (const Member& member : members) {
    const TrainLoop& loop = *member.loop;
    rows.push_back({member.start.rate, fmt::format("{:.4f}", loop.loss()),
                    loss_text(loop.first_eval()), loss_text(loop.last_eval()),
                    perplexity_text(loop.last_eval()), verdict_on(member, members)});
  }
  return rows;
}

const std::vector<std::string> kHeads = {"learning rate", "training loss", "evaluation before",
                                         "after",         "perplexity",    ""};

void print_table(const std::vector<Member>& members) {
  std::vector<report::Column> columns;
  for (const std::string& head : kHeads) columns.push_back({head, report::Align::kRight});
  report::Table table(columns);
  for (auto& row : table_rows_of(members)) table.add_row(std::move(row));
  say(table.text());
}

void write_table(const std::string& out, const std::vector<Member>& members) {
  std::string text = fmt::format("| {} |\n|---|---|---|---|---|---|\n", fmt::join(kHeads, " | "));
  for (const auto& row : table_rows_of(members))
    text += fmt::format("| {} |\n", fmt::join(row, " | "));
  write_file_atomic(out + "/sweep.md", text);
}

// A rate's evaluations, or where there are none the smoothed loss of training.
report::CurveSeries read_curve_of(const Member& member) {
  const auto records = report::read_metrics(metrics_path(member.start.settings.out));
  const std::string name = "lr " + member.start.rate;
  report::CurveSeries evaluated = series_of(records, "eval_loss", {.name = name, .markers = true});
  return evaluated.x.size() > 1 ? evaluated : smooth(series_of(records, "loss", {}), name);
}

void write_chart(const std::string& out, const std::vector<Member>& members) {
  const bool evaluates = std::ranges::any_of(
      members, [](const Member& member) { return member.loop->last_eval().has_value(); });
  report::CurveChart chart{.title = evaluates ? "evaluation loss" : "training loss (smoothed)",
                           .x_label = "step",
                           .y_label = "nats per token"};
  for (const Member& member : members) chart.series.push_back(read_curve_of(member));
  write_file_atomic(out + "/sweep.svg", report::svg_chart(chart));
}

// A loss of before a rate diverged is not what it came to.
std::optional<double> unless_diverged(const Member& member, const std::optional<double>& loss) {
  return member.diverged ? std::nullopt : loss;
}

void print_json(const std::vector<Member>& members) {
  std::string text;
  for (const Member& member : members) {
    text += fmt::format(
        "{}{{\"lr\":{},\"out\":\"lr-{}\",\"steps\":{},\"loss\":{},\"eval_loss_before\":{},"
        "\"eval_loss\":{}}}",
        text.empty() ? "" : ",", member.start.settings.lr, member.start.rate,
        member.job->steps_done(),
        text::json_optional_number(unless_diverged(member, member.loop->loss())),
        text::json_optional_number(member.loop->first_eval()),
        text::json_optional_number(unless_diverged(member, member.loop->last_eval())));
  }
  print_result(
      fmt::format("{{\"sweep\":[{}],\"lowest\":{}}}\n", text, best_of(members).start.settings.lr));
}

void check_one_converged(const std::vector<Member>& members) {
  if (!std::ranges::all_of(members, &Member::diverged)) return;
  throw NotFinite("--lr: every rate diverged; lower them, or use --dtype f32");
}

std::vector<std::string> converged_rates(const std::vector<Member>& members) {
  std::vector<std::string> rates;
  for (const Member& member : members) {
    if (!member.diverged) rates.push_back(member.start.rate);
  }
  return rates;
}

// Saves all members and reports on them; false where a signal stopped it.
bool finish_sweep(const TrainOptions& options, std::vector<Member>& members, double begin) {
  bool ended = true;
  for (Member& member : members) {
    if (!member.diverged) ended = member.loop->finish_run() && ended;
  }
  if (!ended) return false;
  write_table(options.out, members);
  write_chart(options.out, members);
  print_table(members);
  say(fmt::format("{}; saved: {}/lr-{}\n", report::format_duration(now_seconds() - begin),
                  options.out, fmt::join(converged_rates(members), ", lr-")));
  const std::string& best = best_of(members).start.rate;
  say(fmt::format("the lowest loss has lr {}; try it: strata chat {}\n", best,
                  shell_word(fmt::format("{}/lr-{}", options.out, best))));
  if (options.json) print_json(members);
  return true;
}

// By which all of them go on together; each has one of its own, too.
void save_recipe_of_new_sweep(const TrainOptions& options, const std::vector<JobStart>& jobs) {
  if (!options.dry_run && !std::ranges::all_of(jobs, &JobStart::resumes))
    save_recipe_of_run(options);
}

// False where a signal stopped it.
bool run_members(Comm& comm, const RunStart& start, std::vector<Member>& members) {
  const double begin = now_seconds();
  const auto& [run, data, jobs] = start;
  const TrainSettings& planned = jobs.front().settings;
  const auto pipeline = load_train_model(comm, run, planned, data);
  make_jobs(members, run, pipeline, data);
  for (Member& member : members) {
    member.fingerprint = compute_job_fingerprint(*member.job);
    prepare_output(*member.job, member.fingerprint, member.start.resumes);
  }
  save_recipe_of_new_sweep(planned.options, jobs);
  const std::optional<Predicted> predicted = announce_plan(*members.front().job, run.plan);
  if (planned.options.dry_run) return true;
  return_free_memory();
  std::optional<TrainSampler> sampler;
  if (!planned.options.samples.empty())
    sampler.emplace(
        texts_with_adapter(run.spec.texts, planned.options.adapter, planned.options.chat),
        planned.options.chat, planned.options.samples);
  make_loops(members, predicted, sampler ? &*sampler : nullptr);
  const StopSignals signals(kStopNotice, StopSignals::First::kNoted, StopSignals::Work::kToLose);
  train_in_turn(members, "sweep");
  check_one_converged(members);
  return finish_sweep(planned.options, members, begin);
}

}  // namespace

int run_sweep(const RunStart& start) {
  int code = 0;
  run_ranks(1, [&](Comm& comm) {
    std::vector<Member> members;  // which go before the model that they share
    for (const JobStart& job : start.jobs) members.push_back({.start = job});
    if (!run_members(comm, start, members)) code = StopSignals::exit_code();
  });
  return code;
}

}  // namespace strata::apps
