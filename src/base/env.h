// SPDX-License-Identifier: Apache-2.0
// Every environment variable Strata reads, and the only place that reads one.
//   STRATA_CPU_PATH  amx, avx512_bf16, avx512, avx2 or reference, if the machine has it (else
//                    an error); amx:avx512 and amx:avx2 are amx without its tiles
//   STRATA_LOG       0 errors only, 1 warnings (default), 2 info, 3 debug, 4 trace
//   STRATA_<OPTION>  options of `strata serve` (server/tinker/options/options.h): STRATA_KEYS,
//   STRATA_CONFIG, ...
//   TMPDIR           where files without names lie that hold what memory does not; /tmp
//   XDG_STATE_HOME   where the history of `strata chat` is kept; HOME/.local/state
//   HOME             also what ~/ stands for in file names that are typed in a chat
//   TERM             whether lines can be edited at the terminal
//   NOTIFY_SOCKET, WATCHDOG_PID, WATCHDOG_USEC  of systemd (sd_notify(3))
//   OMPI_COMM_WORLD_SIZE  how many of a command Open MPI's mpirun has started
//   SLURM_STEP_NUM_TASKS  likewise Slurm's srun
//   HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME, HOME   where models of the Hugging Face hub lie
#pragma once
#include <map>
#include <string>
#include <vector>

namespace strata {

std::string env_cpu_path();  // empty when unset
std::string env_temporary_folder();
std::string env_state_folder();  // empty when neither variable names an absolute path
std::string env_home();          // empty when unset
std::string env_terminal();      // empty when unset
// Those that are named, the first to be asked first: HF_HUB_CACHE, HF_HOME/hub, and huggingface/hub
// in XDG_CACHE_HOME and in HOME/.cache. They need not be there.
std::vector<std::string> env_hub_caches();
int env_log_level();  // 1 when unset; an Error when it is not 0..4
std::map<std::string, std::string> env_strata_variables();  // every STRATA_* variable
// Empty when unset.
std::string env_notify_socket();
std::string env_watchdog_pid();
std::string env_watchdog_usec();
std::string env_mpi_size();

}  // namespace strata
