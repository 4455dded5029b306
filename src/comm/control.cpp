#include "pipetrain/comm/control.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "pipetrain/error.h"

namespace pipetrain {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::string text_of(std::span<const std::byte> data) {
  return {reinterpret_cast<const char*>(data.data()), data.size()};
}

// What stands in `text` at `position`: the flag and its value, or else so much of the line.
std::string around(const std::string& text, size_t position) {
  constexpr size_t before = 60;
  constexpr size_t most = 160;
  position = std::min(position, text.size());
  const size_t newline = position == 0 ? std::string::npos : text.rfind('\n', position - 1);
  const size_t line = newline == std::string::npos ? 0 : newline + 1;
  const size_t flag = text.rfind("--", position);
  size_t begin = flag != std::string::npos && flag >= line ? flag : line;
  const bool cut = position - begin > before;
  begin = cut ? position - before : begin;
  const size_t end = std::min(text.find('\n', position), text.find(" --", position));
  const std::string part = text.substr(begin, std::min(end, text.size()) - begin);
  return (cut ? "..." : "") + (part.size() <= most ? part : part.substr(0, most) + "...");
}

// What rank 0 finds: empty when all are equal.
std::string differences(const std::vector<std::vector<std::byte>>& values,
                        const std::string& what) {
  for (size_t rank = 1; rank < values.size(); ++rank) {
    if (values[rank] != values[0]) {
      const std::string first = text_of(values[0]);
      const std::string other = text_of(values[rank]);
      const size_t position =
          size_t(std::mismatch(first.begin(), first.end(), other.begin(), other.end()).first -
                 first.begin());
      return fmt::format(
          "{} must be equal on all ranks, but rank 0 has '{}' and rank {} has '{}'; start all "
          "ranks with the same flags and files",
          what, around(first, position), rank, around(other, position));
    }
  }
  return "";
}

}  // namespace

void Control::barrier() {
  gather({}, 0);
  broadcast(std::string(), 0);
}

std::vector<std::vector<std::byte>> Control::gather(std::span<const std::byte> data, int root) {
  if (rank() != root) {
    send(data, root);
    return {};
  }
  std::vector<std::vector<std::byte>> all;
  for (int source = 0; source < size(); ++source) {
    all.push_back(source == root ? std::vector<std::byte>(data.begin(), data.end())
                                 : receive(source));
  }
  return all;
}

void Control::require_equal(const std::string& value, const std::string& what) {
  const std::string problem = broadcast(differences(gather(bytes_of(value), 0), what), 0);
  if (!problem.empty()) {
    throw UsageError(problem);
  }
}

std::vector<int> Control::first_equal(const std::string& value) {
  const std::vector<std::vector<std::byte>> values = gather(bytes_of(value), 0);
  std::vector<int> first(static_cast<size_t>(size()));
  for (size_t rank = 0; rank < values.size(); ++rank) {
    first[rank] = int(std::find(values.begin(), values.end(), values[rank]) - values.begin());
  }
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(first));
  std::vector<std::byte> data(bytes.begin(), bytes.end());
  broadcast(data, 0);
  std::copy(data.begin(), data.end(), bytes.begin());
  return first;
}

std::string Control::broadcast(const std::string& text, int root) {
  const std::span<const std::byte> bytes = bytes_of(text);
  std::vector<std::byte> data(bytes.begin(), bytes.end());
  broadcast(data, root);
  return text_of(data);
}

void end_job(int code) {
  std::fflush(stdout);
  std::fflush(stderr);
  _exit(code);
}

}  // namespace pipetrain
