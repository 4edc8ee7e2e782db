// A table of options on the command line.
#pragma once
#include "base/option_table.h"

namespace CLI {
class App;
}

namespace strata::apps {

// The row outlives the command. A value that is no such value is a strata::Error.
void add_row(CLI::App& command, const OptionRow& row);

}  // namespace strata::apps
