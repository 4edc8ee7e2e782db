// SPDX-License-Identifier: Apache-2.0
// TrainJob::export_to (trainer/job.h): the adapter or the model of a run, with what others need of
// it.
#include <filesystem>
#include <map>

#include "model/adapter/base_numbers.h"
#include "model/adapter/fused.h"
#include "model/weights/save.h"
#include "ops/elementwise.h"
#include "setup/adapter_texts.h"
#include "setup/hub_cache.h"
#include "setup/model_files.h"
#include "trainer/job.h"

namespace strata::apps {

void TrainJob::export_to(const std::string& dir) {
  is_lora() ? export_adapter(dir) : export_model(dir);
}

namespace {

// A folder of the hub's cache is this machine's: others know the model by its name. Any other is
// named so that the adapter is of use in whatever folder somebody stands.
std::string base_name_for_adapter(const std::string& base_dir) {
  const std::string name = hub_name_of_snapshot(base_dir);
  if (!name.empty()) return name;
  const std::filesystem::path path = std::filesystem::absolute(base_dir).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).string();
}

}  // namespace

void TrainJob::export_adapter(const std::string& dir) {
  const model::LoraAdapter* adapter = pipeline_->gather().adapter(slot_);
  if (adapter == nullptr) return;
  const model::LoadedModel& base = engine().model();
  model::save_adapter_for_peft(*adapter, base.config, dir, base_name_for_adapter(base.dir),
                               model::base_fingerprint_metadata(base));
  copy_adapter_texts(spec_.texts, options().adapter, options().chat, dir);
}

// A buffer that nothing moves is as it was read.
void TrainJob::read_buffer(size_t index, const std::map<size_t, TensorView>& moved,
                           TensorView rows) {
  const auto bias = moved.find(index);
  if (bias == moved.end())
    return model::read_stored_parameter(engine().backend(), engine().model(), index, rows);
  ops::copy(engine().backend(), bias->second.part(0, rows.shape), rows);
}

void TrainJob::export_model(const std::string& dir) {
  // Biases that another stage moved.
  std::map<size_t, TensorView> moved;
  if (stages().num_stages() > 1) {
    for (const size_t index : router_bias_indices()) moved[index] = gather_router_bias(index);
  }
  pipeline_->gather().run_with_masters_served([&](engine::RankGather::ReadRows read) {
    const auto masters = [&](size_t index, int64_t first_row, TensorView rows) {
      if (engine().model().weights->table()[index].buffer) return read_buffer(index, moved, rows);
      return read(index, first_row, rows);
    };
    const model::RowSource source(masters);
    model::save_model(engine().backend(), engine().model(), dir, &source);
    copy_model_files_as_unquantized(spec_.texts, dir);
    copy_adapter_texts(spec_.texts, "", options().chat, dir);
  });
}

}  // namespace strata::apps
