// SPDX-License-Identifier: Apache-2.0
// Files on their way to clients: what they hold, how fast they must be read, and on which thread.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "server/http/server.h"
#include "tests/server/http/client.h"

namespace strata::server {
namespace {

constexpr size_t kFile = 24 << 20;
constexpr int64_t kPiece = 64 << 10;

// Of zeros, and nothing on the disk.
std::string make_file() {
  std::string path = testing::TempDir() + "/strata_file_" + std::to_string(::getpid());
  const int file = ::open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
  EXPECT_EQ(::ftruncate(file, kFile), 0);
  ::close(file);
  return path;
}

struct DownloadTest : ::testing::Test {
  DownloadTest() { options.body_timeout = 5; }
  ~DownloadTest() override { ::unlink(file.c_str()); }

  void serve() {
    Router router;
    router.add({"GET", "/api/v1/healthz", BodyKind::kNone,
                at_once([](const Request&) { return json_response(200, "{}"); }), false});
    router.add({"GET", "/api/v1/file", BodyKind::kNone, at_once([this](const Request& request) {
                  Response response;
                  response.file = FilePart{file, 0, kFile, std::string(request.header("x-tenant"))};
                  return response;
                }),
                false});
    server = std::make_unique<HttpServer>(options, std::move(router), Identify{});
    server->start();
  }
  std::string ask(const std::string& text) const {
    Client client(server->port());
    client.send(text);
    return client.read();
  }
  [[nodiscard]] static std::string download(const std::string& tenant) {
    return "GET /api/v1/file HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Tenant: " +
           tenant + "\r\n\r\n";
  }
  void wait_for_downloads(int64_t count) const {
    const double end = now_seconds() + 5;
    while (options.accounts.of(Use::kDownload).used() != count * kPiece && now_seconds() < end) {
    }
    EXPECT_EQ(options.accounts.of(Use::kDownload).used(), count * kPiece);
  }

  const std::string file = make_file();
  HttpOptions options;
  std::unique_ptr<HttpServer> server;
};

// Who asks only how long a file is, and does not read that, makes way as any stranger does.
TEST_F(DownloadTest, HeadsThatAreNotReadShutNobodyOut) {
  options.max_connections = 3;
  options.body_timeout = 60;
  serve();
  std::vector<std::unique_ptr<Client>> unread;
  std::vector<std::jthread> asking;
  std::atomic<int> num_sent = 0;
  for (int i = 0; i < 3; ++i) {
    unread.push_back(std::make_unique<Client>(server->port()));
    asking.emplace_back([&num_sent, &client = *unread.back()] {
      std::string many;
      for (int n = 0; n < 1000; ++n)
        many += "HEAD /api/v1/file HTTP/1.1\r\nHost: localhost\r\nX-Tenant: 1\r\n\r\n";
      while (client.send(many.substr(0, many.size() / 1000))) {
        ++num_sent;
        if (num_sent % 100 == 0 && !client.send(many)) break;
      }
    });
  }
  for (int before = -1; std::exchange(before, num_sent) != num_sent;)
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const std::string healthz = "GET /api/v1/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
  EXPECT_EQ(ask(healthz).substr(0, 12), "HTTP/1.1 200");
  EXPECT_EQ(ask(healthz).substr(0, 12), "HTTP/1.1 200");
  for (const auto& one : unread) one->end_writing();
}

// Files are sent to who has no key but a signed URL, and count for the tenant whose it is.
TEST_F(DownloadTest, DownloadsThatAreNotReadCountByTenant) {
  options.accounts.of(Use::kDownload) = SharedLimit(10 * kPiece);
  options.max_downloads_per_tenant = 4;
  serve();
  std::vector<std::unique_ptr<Client>> unread;
  for (int i = 0; i < 4; ++i) {
    unread.push_back(std::make_unique<Client>(server->port()));
    unread.back()->send(download("1"));
  }
  wait_for_downloads(4);
  const std::string refused = ask(download("1"));
  EXPECT_EQ(status(refused), "429");
  EXPECT_NE(refused.find("--max-downloads-per-tenant"), std::string::npos);
  const Client other(server->port());
  other.send(download("2"));
  EXPECT_GT(other.read_slowly(), kFile);
  unread.clear();
  wait_for_downloads(0);
}

TEST_F(DownloadTest, WithoutRoomForOneMoreADownloadIs503) {
  options.accounts.of(Use::kDownload) = SharedLimit(2 * kPiece);
  serve();
  const auto held = options.accounts.of(Use::kDownload).take("1", 2 * kPiece);
  const std::string full = ask(download("1"));
  EXPECT_EQ(status(full), "503");
  EXPECT_NE(full.find("--max-download-bytes"), std::string::npos);
  EXPECT_NE(full.find("retry-after"), std::string::npos);
}

TEST_F(DownloadTest, ADownloadThatIsReadTooSlowlyIsCut) {
  options.min_download_rate = 1e9;
  options.body_timeout = 0.3;
  serve();
  const Client client(server->port());
  client.send(download("1"));
  const size_t got = client.read_slowly();  // some 17 MB/s
  EXPECT_GT(got, 1 << 20);
  EXPECT_LT(got, kFile);
  wait_for_downloads(0);
}

// A disk that hangs holds up who reads from it, and nobody else.
TEST_F(DownloadTest, FilesAreReadAside) {
  std::promise<void> disk;
  const std::shared_future<void> answers = disk.get_future().share();
  std::vector<std::thread> threads;
  std::atomic<int> asked = 0;
  options.read_aside = [&](const std::string& tenant, std::function<void()> read) {
    EXPECT_EQ(tenant, "1");
    if (asked++ > 0) return read();
    threads.emplace_back([read = std::move(read), answers] {
      answers.wait();
      read();
    });
  };
  serve();
  const Client client(server->port());
  client.send(download("1"));
  const double end = now_seconds() + 5;
  while (asked == 0 && now_seconds() < end) std::this_thread::yield();
  EXPECT_EQ(status(ask("GET /api/v1/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")), "200");
  disk.set_value();
  EXPECT_GT(client.read_slowly(), kFile);
  for (std::thread& thread : threads) thread.join();
}

#ifdef __GLIBC__
// A long header is not kept by a connection that idles behind it.
TEST_F(DownloadTest, AnIdleConnectionKeepsLittle) {
  constexpr int kConnections = 200;
  serve();
  const std::string request =
      "GET /api/v1/healthz HTTP/1.1\r\nHost: localhost\r\nX-Long: " + std::string(15 << 10, 'x') +
      "\r\n\r\n";
  std::vector<std::unique_ptr<Client>> idle;
  const auto connect = [&](int count) {
    for (int i = 0; i < count; ++i) {
      idle.push_back(std::make_unique<Client>(server->port()));
      idle.back()->send(request);
      EXPECT_EQ(status(idle.back()->read()), "200");
    }
  };
  connect(10);
  const size_t before = ::mallinfo2().uordblks;
  connect(kConnections);
  EXPECT_LT((::mallinfo2().uordblks - before) / kConnections, 12U << 10);
}
#endif

}  // namespace
}  // namespace strata::server
