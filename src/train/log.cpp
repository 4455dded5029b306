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
  spdlog::logger file{"pipetrain"};  // the file alone, if there is one
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
      state_->file.sinks().push_back(std::move(sink));
    } catch (const spdlog::spdlog_ex& error) {
      throw UsageError(fmt::format("--run-dir: {} cannot be opened: {}", file, error.what()));
    }
  }
  const auto said = std::make_shared<bool>(false);
  for (spdlog::logger* logger : {&state_->logger, &state_->file}) {
    logger->flush_on(spdlog::level::info);
    logger->set_error_handler([said, file](const std::string& problem) {
      if (!std::exchange(*said, true)) {
        std::fprintf(stderr, "pipetrain: warning: %s cannot be written: %s\n", file.c_str(),
                     problem.c_str());
      }
    });
  }
}

Log::~Log() = default;

void Log::info(const std::string& line) {
  state_->logger.log(spdlog::level::info, line);
}
void Log::warning(const std::string& line) {
  state_->logger.log(spdlog::level::warn, "warning: " + line);
}
void Log::last_line(const std::string& line) {
  state_->file.log(spdlog::level::err, line);
}

}  // namespace pipetrain
