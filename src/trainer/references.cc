// SPDX-License-Identifier: Apache-2.0
// TrainJob::find_references and recompute_references (trainer/job.h).
#include <fmt/format.h>

#include <boost/json.hpp>

#include "base/error.h"
#include "base/hash.h"
#include "report/progress.h"
#include "setup/ranks.h"
#include "trainer/job.h"

namespace strata::apps {
namespace {

// A hash of all that a sum of the reference model depends on but its tokens, from a run's
// fingerprint.
uint64_t hash_reference_model(const std::string& fingerprint) {
  const boost::json::object options = boost::json::parse(fingerprint).as_object();
  Hash hash;
  for (const char* name : {"model", "adapter", "dtype", "load-in-4bit", "cpu path"})
    hash.mix(Hash::of(boost::json::serialize(options.at(name))));
  return hash.value();
}

// A run that goes on has trained what was its reference.
[[noreturn]] void fail_without(const std::string& path, int64_t missing) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("resume: {}: lacks what the reference model gives the answers of {} "
                          "pair{}, and that model is trained by now; was the file removed? Go on "
                          "with --reference recompute, which asks the start's weights, or of "
                          "--method full begin again, with another --out",
                          path, missing, missing == 1 ? "" : "s"));
}

}  // namespace

void TrainJob::find_references(const std::string& fingerprint) {
  if (!options().loss.has_reference() || options().loss.recomputes_reference()) return;
  uint64_t key = is_first_rank() ? hash_reference_model(fingerprint) : 0;
  if (pipeline_->comm().size() > 1) broadcast(pipeline_->comm(), key);
  const std::string path = settings_.out + "/references.bin";
  references_ = References(path, key, is_first_rank());
  const data::Examples* const sets[] = {&data_.train.examples, &data_.eval.examples};
  int64_t missing = 0;
  for (const data::Examples* pairs : sets) missing += count_without_reference(*pairs, references_);
  if (missing == 0) return;
  if (steps_done_ > 0) fail_without(path, missing);
  std::optional<report::Progress> progress;
  if (is_first_rank())
    progress.emplace(report::ProgressOptions{.label = "reference", .total = missing});
  int64_t before = 0;
  for (const data::Examples* pairs : sets) {
    int64_t done = 0;
    add_references(*pipeline_, slot_, *pairs, options().micro_tokens, references_,
                   [&](int64_t count) {
                     done = count;
                     if (progress) progress->update(before + done);
                   });
    before += done;
  }
  if (progress) progress->finish();
}

void TrainJob::recompute_references(const data::Examples& pairs) {
  references_ = {};
  add_references(*pipeline_, reference_slot_, pairs, options().micro_tokens, references_,
                 [](int64_t) {});
}

}  // namespace strata::apps
