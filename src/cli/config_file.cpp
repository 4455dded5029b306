#include "cli/config_file.h"

#include <fmt/format.h>

#include <CLI/Config.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "cli/flat_toml.h"
#include "cli/values.h"
#include "pipetrain/error.h"

namespace pipetrain {
namespace {

// The kind of value that an option takes, as a file writes it; empty if `value` is of that kind.
std::string needed_instead(const CLI::Option& option, const TomlValue& value) {
  using Kind = TomlValue::Kind;
  switch (value_kind(option)) {
    case ValueKind::flag:
      return value.kind == Kind::boolean ? "" : "true or false";
    case ValueKind::integer:
    case ValueKind::count:
      return value.kind == Kind::integer ? "" : "a whole number";
    case ValueKind::number:
      return value.kind == Kind::integer || value.kind == Kind::number ? "" : "a number";
    case ValueKind::text:
      return value.kind == Kind::text ? "" : "a string in quotes";
  }
  return "";
}

// CLI11 applies a file to the main app only, and reads TOML loosely. Here the file is read strictly
// and its keys are moved below the subcommand that was given.
class FlatToml : public CLI::ConfigTOML {
 public:
  explicit FlatToml(const CLI::App& main) : main_(main) {}

  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    const CLI::App* command = given_command();
    const std::string text{std::istreambuf_iterator<char>(input), {}};
    const std::string source = "--config " + main_.get_config_ptr()->as<std::string>();
    std::vector<CLI::ConfigItem> result;
    for (const TomlEntry& entry : parse_flat_toml(text, source)) {
      const CLI::Option* option = command->get_option_no_throw("--" + entry.key);
      if (option == nullptr || !option->get_configurable()) {
        throw UsageError(
            fmt::format("{}: line {}: '{}' is no flag of {}; pipetrain {} --help lists them",
                        source, entry.line, entry.key, command->get_name(), command->get_name()));
      }
      check_values(entry, *option, fmt::format("{}: line {}", source, entry.line));
      CLI::ConfigItem item;
      item.parents = {command->get_name()};
      item.name = entry.key;
      for (const TomlValue& value : entry.values) {
        item.inputs.push_back(value.text);
      }
      result.push_back(std::move(item));
    }
    return result;
  }

 private:
  const CLI::App* given_command() const {
    for (const CLI::App* command : main_.get_subcommands(nullptr)) {
      if (command->parsed()) {
        return command;
      }
    }
    throw UsageError("--config needs a subcommand; see pipetrain --help");
  }

  static void check_values(const TomlEntry& entry, const CLI::Option& option,
                           const std::string& place) {
    const bool several = option.get_items_expected_max() > 1;
    if (entry.array && !several) {
      throw UsageError(fmt::format("{}: {} takes one value, not an array", place, entry.key));
    }
    if (entry.values.empty()) {
      throw UsageError(fmt::format("{}: {} needs at least one value", place, entry.key));
    }
    for (const TomlValue& value : entry.values) {
      if (const std::string needed = needed_instead(option, value); !needed.empty()) {
        throw UsageError(fmt::format("{}: {} is '{}'; {} is needed{}", place, entry.key, value.text,
                                     needed, several ? ", or an array" : ""));
      }
    }
  }

  const CLI::App& main_;
};

std::string readable_file(const std::string& path) {
  std::error_code problem;
  if (std::filesystem::is_directory(path, problem)) {
    return path + " is a directory; a TOML file is needed";
  }
  errno = 0;
  if (!std::ifstream(path)) {
    return fmt::format("{} cannot be read: {}", path, std::strerror(errno));
  }
  return "";
}

}  // namespace

void add_config_file(CLI::App& main) {
  main.set_config("--config", "", "TOML file with flags of the subcommand, flat: steps = 100")
      ->type_name("FILE")
      ->check(readable_file);
  main.allow_config_extras(CLI::config_extras_mode::error);
  main.config_formatter(std::make_shared<FlatToml>(main));
}

std::string given_config_file(const CLI::App& main) {
  const CLI::Option* file = main.get_config_ptr();
  return file->count() > 0 ? file->as<std::string>() : "";
}

}  // namespace pipetrain
