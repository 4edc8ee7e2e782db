// SPDX-License-Identifier: Apache-2.0
// What rows may say. A checkpoint's folder has its path from them, so a row that somebody else
// wrote could name any folder of the machine; names of other rows make addresses, and are asked for
// again. Whoever reads rows of a database holds them against this before it makes a path: the
// start, a backup, a check, a restoration.
#pragma once
#include <string>
#include <string_view>

namespace strata::server {

// As the columns stand in the database.
struct RowNames {
  std::string id, tenant, run_id, kind, name;
};

// What is wrong with it, or "".
std::string find_name_fault(const RowNames& row);
// Whether all but its name is right: what a folder's path is made of.
bool makes_a_folder(const RowNames& row);
// Below the folder of checkpoints, of a row that makes one.
std::string folder_of_row(const RowNames& row);

// Whether a server writes such a text into that column of that table of the state store.
bool fits_column(std::string_view table, std::string_view column, std::string_view text);

// One part of a path below the folder of checkpoints: a run's id, or a file's name.
bool is_path_part(std::string_view text);
bool is_hex(std::string_view text, size_t size);

}  // namespace strata::server
