#include "cli/config_file.h"

#include <fmt/format.h>

#include <CLI/Config.hpp>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "pipetrain/error.h"

namespace pipetrain {
namespace {

// CLI11 applies a file to the main app only. The keys of the flat file are moved below the
// subcommand that was given.
class FlatToml : public CLI::ConfigTOML {
 public:
  explicit FlatToml(const CLI::App& main) : main_(main) {}

  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    const std::vector<const CLI::App*> given = main_.get_subcommands(nullptr);
    std::vector<CLI::ConfigItem> entries = CLI::ConfigTOML::from_config(input);
    std::set<std::string> names;
    for (CLI::ConfigItem& item : entries) {
      if (!item.parents.empty() || item.name == "++" || item.name == "--") {
        throw UsageError(fmt::format("--config: section '{}': the file must be flat, keys only",
                                     item.parents.empty() ? item.name : item.parents.front()));
      }
      if (!names.insert(item.name).second) {
        throw UsageError(fmt::format("--config: key '{}' is given twice", item.name));
      }
      for (const CLI::App* command : given) {
        if (command->parsed()) {
          item.parents = {command->get_name()};
        }
      }
    }
    return entries;
  }

 private:
  const CLI::App& main_;
};

}  // namespace

void add_config_file(CLI::App& main) {
  main.set_config("--config", "", "TOML file with flags of the subcommand, flat: steps = 100");
  main.allow_config_extras(CLI::config_extras_mode::error);
  main.config_formatter(std::make_shared<FlatToml>(main));
}

}  // namespace pipetrain
