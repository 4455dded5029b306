#include "pipetrain/train/log.h"

#include <fmt/format.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>

#include <cstdio>
#include <utility>

#include "pipetrain/error.h"

namespace pipetrain {

struct Log::State {
  spdlog::logger logger{"pipetrain"};
  spdlog::sink_ptr file;
};

Log::Log(const std::string& file, Terminal terminal) : state_(std::make_unique<State>()) {
  if (terminal == Terminal::on) {
    auto sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
    sink->set_pattern("%^%v%$");
    sink->set_color(spdlog::level::info, "");
    state_->logger.sinks().push_back(std::move(sink));
  }
  if (!file.empty()) {
    try {
      auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(file);
      sink->set_pattern("%Y-%m-%d %H:%M:%S %l %v");
      state_->logger.sinks().push_back(sink);
      state_->file = std::move(sink);
    } catch (const spdlog::spdlog_ex& error) {
      throw UsageError(fmt::format("--run-dir: {} cannot be opened: {}", file, error.what()));
    }
  }
  state_->logger.flush_on(spdlog::level::info);
  state_->logger.set_error_handler([said = false, file](const std::string& problem) mutable {
    if (!std::exchange(said, true)) {
      fmt::print(stderr, "pipetrain: warning: {} cannot be written: {}\n", file, problem);
    }
  });
}

Log::~Log() = default;

void Log::info(const std::string& line) {
  state_->logger.log(spdlog::level::info, line);
}
void Log::warning(const std::string& line) {
  state_->logger.log(spdlog::level::warn, "warning: " + line);
}
void Log::last_line(const std::string& line) {
  if (state_->file) {
    spdlog::logger("pipetrain", state_->file).log(spdlog::level::err, line);
    state_->file->flush();
  }
}

}  // namespace pipetrain
