// SPDX-License-Identifier: Apache-2.0
#include "trainer/report_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <string_view>

#include "base/files.h"
#include "report/format.h"
#include "report/text_width.h"
#include "trainer/curves.h"

namespace strata::apps {
namespace {

constexpr int64_t kMostSampleBytes = int64_t{1} << 30;
// A byte takes six at most, escaped. So samples take 0.65 MB at most and tables 0.6 MB; curves of
// 4,000 points take 0.6 MB.
constexpr size_t kMostTextBytes = 1500, kMostSamples = 24;
constexpr size_t kMostCellBytes = 400, kMostRows = 40;

constexpr std::string_view kHead = R"html(<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{0}</title>
<style>
:root {{ color-scheme: light dark; --page: #fff; --card: #f6f8fa; --text: #1f2328; --dim: #57606a;
  --line: #d0d7de; --bad: #b42318; }}
body {{ font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page);
  margin: 0 auto; max-width: 54rem; padding: 1rem; }}
h1 {{ font-size: 1.4rem; margin: .5rem 0 1rem; overflow-wrap: anywhere; }}
h2 {{ font-size: 1.1rem; margin: 2rem 0 .5rem; }}
table {{ border-collapse: collapse; width: 100%; }}
th, td {{ text-align: left; vertical-align: top; padding: .35rem 1rem .35rem 0;
  border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }}
th {{ font-weight: 600; width: 13rem; }}
pre, .text {{ white-space: pre-wrap; overflow-wrap: anywhere; margin: 0;
  font: 13px/1.5 ui-monospace, monospace; }}
pre {{ background: var(--card); padding: .6rem .8rem; border-radius: 6px; margin: .2rem 0 .8rem; }}
p {{ margin: .4rem 0; }}
.dim {{ color: var(--dim); }}
.bad {{ color: var(--bad); font-weight: 600; }}
svg {{ max-width: 100%; height: auto; border: 1px solid var(--line); border-radius: 6px; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --page: #0d1117; --card: #161b22; --text: #e6edf3; --dim: #9da7b1; --line: #30363d;
    --bad: #ff8a80; }}
  .curves rect {{ fill: var(--card); }}
  .curves text, .curves .l {{ fill: var(--text); }}
  .curves .t {{ fill: var(--dim); }}
  .curves .grid {{ stroke: var(--line); }}
  .curves [stroke="#0072B2"] {{ stroke: #4ea8de; }}
}}
</style>
</head>
<body>
)html";

// Text of anybody as a part of the page.
std::string escaped(std::string_view text) {
  return report::markup_escaped(report::printable_lines(text));
}

std::string shortened(std::string_view text, size_t most = kMostTextBytes) {
  if (text.size() <= most) return escaped(text);
  return escaped(text.substr(0, most)) + fmt::format(" ... ({} bytes in all)", text.size());
}

std::string table_html(const RunReport::Rows& rows) {
  std::string out = "<table>\n";
  for (size_t i = 0; i < std::min(rows.size(), kMostRows); ++i)
    out += fmt::format("<tr><th>{}</th><td>{}</td></tr>\n", escaped(rows[i][0]),
                       shortened(rows[i][1], kMostCellBytes));
  if (rows.size() > kMostRows)
    out += fmt::format("<tr><th></th><td>and {} more</td></tr>\n", rows.size() - kMostRows);
  return out + "</table>\n";
}

std::string samples_html(const std::vector<ReportSample>& samples) {
  if (samples.empty())
    return "<p class=\"dim\">None: --sample \"...\" answers a prompt at each evaluation.</p>\n";
  std::string out;
  for (size_t i = 0; i < std::min(samples.size(), kMostSamples); ++i) {
    const ReportSample& sample = samples[i];
    out += fmt::format("<table>\n<tr><th>prompt</th><td class=\"text\">{}</td></tr>\n",
                       shortened(sample.prompt));
    out += fmt::format("<tr><th>step {}</th><td class=\"text\">{}</td></tr>\n", sample.first_step,
                       shortened(sample.first));
    out += fmt::format("<tr><th>step {}</th><td class=\"text\">{}</td></tr>\n</table>\n",
                       sample.last_step, shortened(sample.last));
  }
  if (samples.size() > kMostSamples)
    out += fmt::format("<p class=\"dim\">{} more are in samples.jsonl.</p>\n",
                       samples.size() - kMostSamples);
  return out;
}

// Rows on all steps of the log, also those of earlier parts of a resumed run.
RunReport::Rows rows_of_log(std::span<const report::MetricsRecord> records) {
  int64_t steps = 0;
  double tokens = 0, seconds = 0;
  for (const report::MetricsRecord& record : records) {
    const double of_step = record.number("tokens"), speed = record.number("tokens_per_s");
    if (!std::isfinite(of_step)) continue;
    ++steps;
    tokens += of_step;
    if (speed > 0) seconds += of_step / speed;
  }
  if (seconds == 0) return {};
  return {{"steps", fmt::format("{}, of {} tokens", steps, report::format_count(tokens))},
          {"in all steps", fmt::format("{}, {} tokens/s", report::format_duration(seconds),
                                       report::format_count(tokens / seconds))}};
}

void add_sample(const boost::json::object& line, std::vector<ReportSample>& samples) {
  const int64_t step = line.at("step").to_number<int64_t>();
  const std::string prompt(line.at("prompt").as_string()), text(line.at("text").as_string());
  const auto found = std::ranges::find(samples, prompt, &ReportSample::prompt);
  if (found == samples.end()) {
    samples.push_back({prompt, step, step, text, text});
    return;
  }
  found->last_step = step;
  found->last = text;
}

}  // namespace

std::vector<ReportSample> read_samples(const std::string& path) {
  std::vector<ReportSample> samples;
  if (!file_exists(path)) return samples;
  const std::string content = read_file(path, kMostSampleBytes);
  for (size_t begin = 0; begin < content.size();) {
    const size_t end = std::min(content.find('\n', begin), content.size());
    add_sample(boost::json::parse(std::string_view(content).substr(begin, end - begin)).as_object(),
               samples);
    begin = end + 1;
  }
  return samples;
}

std::string report_page(const RunReport& run, std::span<const report::MetricsRecord> records) {
  std::string out = fmt::format(fmt::runtime(kHead), escaped(run.title));
  out += fmt::format("<h1>{}</h1>\n", escaped(run.title));
  if (!run.verdict.empty()) out += fmt::format("<p class=\"bad\">{}</p>\n", escaped(run.verdict));
  out += table_html(run.outcome);
  out += "<h2>Curves</h2>\n<div class=\"curves\">\n" + report_curves_svg(records) +
         "</div>\n<p class=\"dim\">From metrics.jsonl, which has every step. Of a curve with more "
         "than 4,000 points each stretch is drawn by its lowest and its highest.</p>\n";
  out += "<h2>Samples before and after</h2>\n" + samples_html(run.samples);
  RunReport::Rows costs = rows_of_log(records);
  costs.insert(costs.end(), run.costs.begin(), run.costs.end());
  out += "<h2>Memory and speed</h2>\n" + table_html(costs);
  out += "<h2>Go on</h2>\n";
  for (const auto& [purpose, command] : run.commands)
    out += fmt::format("<p>{}</p>\n<pre>{}</pre>\n", escaped(purpose), escaped(command));
  out += "<details>\n<summary>Settings</summary>\n" + table_html(run.settings) + "</details>\n";
  return out + "</body>\n</html>\n";
}

}  // namespace strata::apps
