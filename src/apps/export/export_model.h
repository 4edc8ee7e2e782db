// SPDX-License-Identifier: Apache-2.0
// What strata merge and strata convert share: the model that is taken out, without its memory, with
// adapters added; the folder that it goes to, whole or not at all; and what rounding changed.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/export/adapter_archive.h"
#include "backend/backend.h"
#include "checkpoint/atomic_dir.h"
#include "model/export/encode.h"
#include "model/export/merged_source.h"
#include "model/weights/load.h"

namespace strata::apps {

// Archives that were unpacked, as long as their folders are read.
using Archives = std::vector<std::shared_ptr<const AdapterArchive>>;

// DIR or DIR:WEIGHT; a name that exists as it was typed is no weight's. A server's archive in the
// place of DIR is unpacked and kept in `archives`. Error for a weight that is no number, and as
// find_adapter() has them.
model::AdapterPart open_adapter_part(const std::string& typed, Archives& archives);

// Which of the adapters that are added to a model gives it its template and tokenizer: the only
// one. Empty: none; where several are added and one has its own, a warning says that the base's are
// kept. Of a server's archive, which is a tenant's, nothing of text is unpacked.
std::string find_adapter_of_texts(const ModelTexts& base,
                                  const std::vector<model::AdapterPart>& parts);

class ExportModel {
 public:
  // Exports the model of these texts. `own_texts`: of the adapters the one whose template and
  // tokenizer come with the model, or empty (find_adapter_of_texts).
  ExportModel(const ModelTexts& texts, const std::vector<model::AdapterPart>& adapters, int threads,
              const std::string& own_texts = {});

  [[nodiscard]] Backend& backend() { return *backend_; }
  // Names, shapes and config; no values.
  [[nodiscard]] const model::LoadedModel& names() const { return names_; }
  // With the adapters' changes.
  [[nodiscard]] const CheckpointSource& source() const;
  [[nodiscard]] const ModelTexts& texts() const { return texts_; }
  // Null without adapters.
  [[nodiscard]] const model::MergedSource* merged() const { return merged_.get(); }
  // config.json as the model is now: tied no more, in another type, without a quantization.
  [[nodiscard]] std::string read_updated_config(std::string_view dtype) const;
  [[nodiscard]] int64_t count_small_file_bytes() const;  // as they are
  // The model's small files, config.json as above; `dtype` empty: as it was.
  void write_small_files(const std::string& dir, std::string_view dtype) const;

 private:
  ModelTexts texts_;
  std::unique_ptr<Backend> backend_;
  model::LoadedModel names_;
  std::unique_ptr<model::MergedSource> merged_;
};

// Error where there is something at the path that would be replaced.
void check_no_overwrite(const std::string& option, const std::string& path);
// Makes the folder of a file that will be written; Error where the path is a folder's.
void make_parent_folder(const std::string& option, const std::string& path);

// A JSON object's text with other values of some members, which are added where they are missing;
// those of its text_config likewise.
std::string with_json_members(const std::string& text, const std::string& where,
                              const std::vector<std::pair<std::string, std::string>>& members);

// How many tensors rounding changed, and the largest change; with `lists` a table of the ten
// largest. All of them as JSON to `report`, where it is not empty.
void report_rounding(const std::vector<model::TensorError>& errors, const std::string& report,
                     bool lists);

}  // namespace strata::apps
