// SPDX-License-Identifier: Apache-2.0
// kill -9 at random moments of saving, replacing, deleting and sweeping: after each restart every
// acknowledged checkpoint is there whole, what was deleted is not, and no folder is half-written.
// STRATA_KILLS sets the number of kills (3).
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>
#include <thread>

#include "base/clock.h"
#include "server/store/checkpoints/registry.h"
#include "tests/base/temp_dir.h"
#include "tests/server/store/state/read_lists.h"

namespace strata::server {
namespace {

namespace fs = std::filesystem;
using strata::testing::read_bytes;
using strata::testing::TempDir;
using strata::testing::write_bytes;

constexpr const char* kRun = "s:train:0";
constexpr int kNames = 5;

struct Parts {
  explicit Parts(const std::string& dir)
      : data(dir), store(open_sqlite(data.database()), wall_seconds()), registry(data, store, {}) {}
  DataDir data;
  StateStore store;
  CheckpointRegistry registry;
};

// What was last acknowledged for each name: a generation, or 0 after a deletion.
struct Event {
  int32_t name;
  int32_t generation;
};

TinkerPath path_of_name(int name) {
  return {kRun, CheckpointKind::kWeights, "n" + std::to_string(name)};
}

std::string content_of(int generation) {
  return std::string(50'000, static_cast<char>('a' + generation % 26)) + std::to_string(generation);
}

[[noreturn]] void save_until_killed(const std::string& dir, int first_generation, int pipe) {
  Parts parts(dir);
  const auto tell = [&](int32_t name, int32_t generation) {
    const Event event{name, generation};
    if (::write(pipe, &event, sizeof event) != sizeof event) ::_exit(1);
  };
  for (int generation = first_generation;; ++generation) {
    const int name = generation % kNames;
    // A negative generation announces what may already be visible without being acknowledged.
    tell(name, -generation);
    const std::string folder = parts.registry.begin_save();
    write_bytes(folder + "/adapter_model.safetensors", content_of(generation));
    CheckpointSave save;
    save.path = path_of_name(name);
    save.tenant = "alice";
    save.base_model = "base";
    const CheckpointRow row = parts.registry.finish_save(folder, save, wall_seconds());
    tell(name, generation);
    if (generation % 7 == 3) {
      tell(name, INT32_MIN);
      parts.store.delete_checkpoint(row.id, wall_seconds());
      tell(name, 0);
    }
    if (generation % 3 == 0) parts.registry.sweep(wall_seconds(), now_seconds());
  }
}

struct Known {
  int acknowledged = 0;  // 0: nothing
  int announced = 0;     // a later save that may be there, or 0
  bool deletion_begun = false;
};

void read_events(int pipe, std::map<int, Known>& known, int& last_generation) {
  for (Event event{}; ::read(pipe, &event, sizeof event) == sizeof event;) {
    Known& name = known[event.name];
    if (event.generation == INT32_MIN) {
      name.deletion_begun = true;
    } else if (event.generation < 0) {
      name.announced = -event.generation;
      last_generation = std::max(last_generation, -event.generation);
    } else {
      name = {event.generation, 0, false};
    }
  }
}

// Returns the generation that is there, 0 for none.
int check_name(Parts& parts, int name, const Known& known) {
  const TinkerPath path = path_of_name(name);
  const auto row = parts.store.find_checkpoint(path.run_id, path.kind, path.name, wall_seconds());
  if (!row) {
    EXPECT_TRUE(known.acknowledged == 0 || known.deletion_begun) << "lost: " << path.text();
    return 0;
  }
  const std::string folder = parts.registry.folder(*row);
  const std::string content = read_bytes(folder + "/adapter_model.safetensors");
  for (const int generation : {known.acknowledged, known.announced}) {
    if (generation == 0 || content != content_of(generation)) continue;
    EXPECT_TRUE(fs::exists(folder + "/checkpoint_complete"));
    EXPECT_TRUE(fs::exists(folder + "/strata.json"));
    return generation;
  }
  ADD_FAILURE() << path.text() << ": " << content.size() << " bytes of neither generation "
                << known.acknowledged << " nor " << known.announced;
  return 0;
}

TEST(Kill, EveryAcknowledgedCheckpointSurvives) {
  const char* wanted = std::getenv("STRATA_KILLS");
  const int kills = wanted == nullptr ? 3 : std::atoi(wanted);
  const TempDir dir;
  const std::string data = dir.path() + "/data";
  std::mt19937 random(std::random_device{}());
  std::map<int, Known> known;
  int generation = 0;
  int64_t acknowledged = 0;
  for (int kill = 0; kill < kills; ++kill) {
    int pipe[2];
    ASSERT_EQ(::pipe(pipe), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      ::close(pipe[0]);
      save_until_killed(data, generation + 1, pipe[1]);
    }
    ::close(pipe[1]);
    const auto life = std::chrono::microseconds(50'000 + random() % 400'000);
    std::thread killer([&] {
      std::this_thread::sleep_for(life);
      ::kill(child, SIGKILL);
    });
    read_events(pipe[0], known, generation);
    killer.join();
    ::close(pipe[0]);
    ::waitpid(child, nullptr, 0);

    Parts parts(data);
    EXPECT_TRUE(fs::is_empty(parts.data.temporary()));
    for (auto& [name, what] : known) {
      acknowledged += what.acknowledged != 0 ? 1 : 0;
      what = {check_name(parts, name, what), 0, false};
    }
    parts.registry.sweep(wall_seconds(), now_seconds());
    size_t folders = 0;
    const auto checkpoints = fs::recursive_directory_iterator(parts.data.checkpoints());
    for (const auto& entry : checkpoints) {
      folders += entry.path().filename() == "checkpoint_complete" ? 1 : 0;
    }
    const auto rows = strata::testing::checkpoints_of(parts.data.database(), kRun, wall_seconds());
    EXPECT_EQ(folders, rows.size());
    ASSERT_FALSE(HasFailure()) << "after " << life.count() << " us, kill " << kill;
  }
  EXPECT_GT(acknowledged, 0) << "the children were killed before they saved anything";
}

}  // namespace
}  // namespace strata::server
