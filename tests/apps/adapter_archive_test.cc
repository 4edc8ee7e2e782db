// SPDX-License-Identifier: Apache-2.0
// Archives of checkpoints as adapters: what is none, is cut or means harm.
#include "apps/export/adapter_archive.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <utility>
#include <vector>

#include "apps/export/export_model.h"
#include "base/error.h"
#include "checkpoint/tar.h"
#include "tests/base/temp_dir.h"

namespace strata::apps {
namespace {

using strata::testing::read_bytes;
using strata::testing::TempDir;
using strata::testing::write_bytes;
using ::testing::HasSubstr;
using Files = std::vector<std::pair<std::string, std::string>>;

constexpr size_t kBlock = 512;
const Files kGood = {{"adapter_config.json", "{}"}, {"adapter_model.safetensors", "weights"}};

class AdapterArchiveTest : public ::testing::Test {
 protected:
  std::string tar(const Files& files) {
    const std::string path = dir_.file("a.tar");
    TarWriter out(path);
    for (const auto& [name, content] : files) out.add(name, content, 0);
    out.commit();
    return path;
  }
  // What is said of it; nothing is left of a folder.
  std::string fault(const std::string& path) {
    try {
      const AdapterArchive archive(path);
      return "none";
    } catch (const Error& error) {
      EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
      EXPECT_EQ(num_folders(), before_);
      return error.what();
    }
  }
  std::string fault(const Files& files) { return fault(tar(files)); }
  // After a change of the archive's bytes; the sums of headers are right.
  template <typename Change>
  std::string fault_after(Change change) {
    std::string bytes = read_bytes(tar(kGood));
    change(bytes);
    for (const size_t at : {size_t{0}, 2 * kBlock}) {
      if (at + kBlock > bytes.size()) continue;
      unsigned sum = 0;
      for (size_t i = 0; i < kBlock; ++i) {
        sum += i >= 148 && i < 156 ? ' ' : static_cast<unsigned char>(bytes[at + i]);
      }
      char text[8];
      std::snprintf(text, sizeof(text), "%06o", sum);
      bytes.replace(at + 148, 8, std::string(text) + '\0' + ' ');
    }
    write_bytes(dir_.file("b.tar"), bytes);
    return fault(dir_.file("b.tar"));
  }
  static int64_t num_folders() {
    int64_t count = 0;
    for (const auto& entry :
         std::filesystem::directory_iterator(std::filesystem::temp_directory_path())) {
      count += entry.path().filename().string().starts_with("strata-adapter-") ? 1 : 0;
    }
    return count;
  }

  TempDir dir_;
  int64_t before_ = num_folders();
};

TEST_F(AdapterArchiveTest, HasTheAdaptersTwoFilesAndIsGoneAtTheEnd) {
  Files files = kGood;
  files.emplace_back("optimizer.safetensors", std::string(3000, 'x'));
  files.emplace_back("checkpoint_complete", "");
  std::string dir;
  {
    Archives archives;
    const model::AdapterPart part = open_adapter_part(tar(files) + ":0.5", archives);
    EXPECT_EQ(part.weight, 0.5);
    dir = part.dir;
    EXPECT_EQ(read_bytes(dir + "/adapter_config.json"), "{}");
    EXPECT_EQ(read_bytes(dir + "/adapter_model.safetensors"), "weights");
    EXPECT_FALSE(std::filesystem::exists(dir + "/optimizer.safetensors"));
    using Perms = std::filesystem::perms;
    EXPECT_EQ(std::filesystem::status(dir).permissions() & (Perms::group_all | Perms::others_all),
              Perms::none);
  }
  EXPECT_FALSE(std::filesystem::exists(dir));
}

TEST_F(AdapterArchiveTest, RefusesWhatIsNone) {
  EXPECT_THAT(fault(Files{}), HasSubstr("has no adapter_config.json; want the archive"));
  EXPECT_THAT(fault(Files{kGood[0]}), HasSubstr("has no adapter_model.safetensors"));
  EXPECT_THAT(fault(Files{kGood[0], kGood[1], kGood[0]}), HasSubstr("'adapter_config.json' twice"));
  EXPECT_THAT(fault(Files{kGood[0], kGood[1], {"config.json", "{}"}}), HasSubstr("merged model"));
  Files many = kGood;
  for (int i = 0; i < 1000; ++i) many.emplace_back("f" + std::to_string(i), "");
  EXPECT_THAT(fault(many), HasSubstr("and few"));
}

// Names lead nowhere else: a path is refused even where it would end at the right place.
TEST_F(AdapterArchiveTest, WritesNothingElsewhere) {
  for (const char* name : {"../adapter_config.json", "./adapter_config.json", "/etc/x", "a/b"}) {
    EXPECT_THAT(fault(Files{kGood[0], kGood[1], {name, "x"}}), HasSubstr("has files alone"))
        << name;
  }
  for (const char type : {'1', '2', '5', 'x', 'L'}) {  // links, folders, other headers
    EXPECT_THAT(fault_after([&](std::string& bytes) { bytes[156] = type; }),
                HasSubstr("not a regular file"));
  }
}

TEST_F(AdapterArchiveTest, RefusesWhatIsDamaged) {
  const std::string whole = read_bytes(tar(kGood));
  for (const size_t size : {size_t{1}, kBlock, kBlock + 1, 2 * kBlock, 3 * kBlock + 3}) {
    write_bytes(dir_.file("cut.tar"), whole.substr(0, size));
    EXPECT_THAT(fault(dir_.file("cut.tar")), HasSubstr("was it cut?")) << size;
  }
  std::string other = whole;
  other[10] ^= 1;  // of the name: the sum of the header
  write_bytes(dir_.file("c.tar"), other);
  EXPECT_THAT(fault(dir_.file("c.tar")), HasSubstr("is it damaged?"));
  for (const char* size :
       {"77777777777", "00000000-1 ", "\x80\x00\x00\x00\x00\x00\x00\x7f\xff\xff\xff"}) {
    EXPECT_THAT(
        fault_after([&](std::string& bytes) { bytes.replace(124, 11, std::string(size, 11)); }),
        HasSubstr("beyond the archive's end"))
        << size;
  }
}

TEST_F(AdapterArchiveTest, AnythingElseIsNoArchive) {
  EXPECT_TRUE(is_tar_file(tar(kGood)));
  EXPECT_FALSE(is_tar_file(dir_.path()));
  EXPECT_FALSE(is_tar_file(dir_.file("nowhere")));
  write_bytes(dir_.file("short"), "ustar");
  EXPECT_FALSE(is_tar_file(dir_.file("short")));
  Archives archives;
  try {
    open_adapter_part(dir_.file("short"), archives);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("this is a file"));
  }
}

}  // namespace
}  // namespace strata::apps
