// Files for tests: a folder of one's own, and short ways to fill and read it.
#ifndef WORKER_DATA_TEST_FILES_H_
#define WORKER_DATA_TEST_FILES_H_

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/string_view.h"
#include "gtest/gtest.h"

namespace lockstep {

// An empty folder named after the running test, removed at the end.
class TestFolder {
 public:
  TestFolder() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::path(testing::TempDir()) /
            (std::string(info->test_suite_name()) + "." + info->name());
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~TestFolder() { std::filesystem::remove_all(path_); }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  std::string path() const { return path_.string(); }
  std::string Path(absl::string_view name) const {
    return (path_ / std::string(name)).string();
  }

  // Returns the path of what it wrote.
  std::string Write(absl::string_view name, absl::string_view content) const {
    std::ofstream(Path(name), std::ios::binary) << content;
    return Path(name);
  }

  std::string Read(absl::string_view name) const {
    std::ifstream in(Path(name), std::ios::binary);
    std::ostringstream content;
    content << in.rdbuf();
    return content.str();
  }

 private:
  std::filesystem::path path_;
};

// `value` as `width` little-endian bytes.
inline std::string LittleEndian(uint64_t value, int width) {
  std::string bytes;
  for (int i = 0; i < width; ++i) {
    bytes.push_back(static_cast<char>(value >> (8 * i)));
  }
  return bytes;
}

}  // namespace lockstep

#endif  // WORKER_DATA_TEST_FILES_H_
