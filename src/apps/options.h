// SPDX-License-Identifier: Apache-2.0
// The options of each command as a table (base/option_table.h), bound to the command's options.
// Defined in options.cc for commands of one file, and in the options.cc of a command's folder.
// Those of serve are in server/tinker/options/options.h, since the environment and a file give them
// as well.
#pragma once
#include "apps/backup.h"
#include "apps/bench/bench.h"
#include "apps/data.h"
#include "apps/eval.h"
#include "apps/export/convert.h"
#include "apps/export/merge.h"
#include "apps/generate/chat.h"
#include "apps/generate/generate.h"
#include "apps/init.h"
#include "apps/inspect.h"
#include "apps/keygen.h"
#include "apps/plan/plan.h"
#include "apps/probe/probe.h"
#include "apps/pull.h"
#include "apps/tokenize.h"
#include "base/option_table.h"
#include "setup/shared_options.h"
#include "trainer/options.h"

namespace strata::apps {

OptionTable option_table_of(GenerateOptions& o);
OptionTable option_table_of(ChatOptions& o);
OptionTable option_table_of(InspectOptions& o);
OptionTable option_table_of(MergeOptions& o);
OptionTable option_table_of(ConvertOptions& o);
OptionTable option_table_of(PlanOptions& o, const PlanMode& mode);
OptionTable option_table_of(DataOptions& o);
OptionTable option_table_of(EvalOptions& o);
OptionTable option_table_of(PullOptions& o);
OptionTable option_table_of(ProbeOptions& o);
OptionTable option_table_of(InitOptions& o);
OptionTable option_table_of(TokenizeOptions& o);
OptionTable option_table_of(BenchOptions& o);
OptionTable option_table_of(KeygenOptions& o);
OptionTable option_table_of(BackupOptions& o);
OptionTable option_table_of(RestoreOptions& o);
OptionTable option_table_of(CheckOptions& o);

}  // namespace strata::apps
