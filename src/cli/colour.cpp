#include "cli/colour.h"

#include <unistd.h>

#include <cstdlib>
#include <string>

#include "pipetrain/comm/environment.h"

namespace pipetrain {
namespace {

bool is_set(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' && std::string(value) != "0";
}

}  // namespace

bool wants_colour() {
  if (is_set("CLICOLOR_FORCE")) {
    return true;
  }
  return !is_set("NO_COLOR") && ranks_started() == 0 && isatty(STDOUT_FILENO) != 0;
}

}  // namespace pipetrain
