#include "cli/values.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <system_error>

#include "pipetrain/error.h"

namespace pipetrain {
namespace {

// Replaces `text` by the number's plain decimal form. Returns what is wrong, or nothing.
template <typename T>
std::string whole_number(std::string& text, const char* needed) {
  T value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc::result_out_of_range && stop == end) {
    return fmt::format("{} is out of range", text);
  }
  if (error != std::errc() || stop != end) {
    return fmt::format("'{}' must be {}", text, needed);
  }
  text = std::to_string(value);
  return "";
}

// A number out of range passes as infinity; what uses it says what is allowed.
std::string any_number(std::string& text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (stop != end || error == std::errc::invalid_argument) {
    return fmt::format("'{}' must be a number", text);
  }
  const bool vanishes =
      error == std::errc::result_out_of_range && std::abs(std::strtod(text.c_str(), nullptr)) < 1;
  return vanishes ? fmt::format("{} is out of range: too near to 0", text) : "";
}

std::string check_value(ValueKind kind, std::string& text) {
  switch (kind) {
    case ValueKind::count:
      return whole_number<uint64_t>(text, "a whole number of at least 0");
    case ValueKind::integer:
      return whole_number<int64_t>(text, "a whole number");
    case ValueKind::number:
      return any_number(text);
    case ValueKind::text:
    case ValueKind::flag:
      return text.empty() ? "an empty value was given" : "";
  }
  return "";
}

}  // namespace

ValueKind value_kind(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  if (option.get_items_expected_max() == 0) {
    return ValueKind::flag;
  }
  return type == "UINT"    ? ValueKind::count
         : type == "INT"   ? ValueKind::integer
         : type == "FLOAT" ? ValueKind::number
                           : ValueKind::text;
}

void require_list_items(const CLI::App& main, const std::vector<std::string>& arguments) {
  const auto is_list = [&](const std::string& flag) {
    for (const CLI::App* command : main.get_subcommands(nullptr)) {
      const CLI::Option* option = command->get_option_no_throw(flag);
      if (option != nullptr && option->get_delimiter() == ',') {
        return true;
      }
    }
    return false;
  };
  std::string flag;  // whose values follow
  for (const std::string& argument : arguments) {
    std::string value = argument;
    if (argument.starts_with("--")) {
      const size_t equals = argument.find('=');
      flag = argument.substr(0, equals);
      if (equals == std::string::npos) {
        continue;
      }
      value = argument.substr(equals + 1);
    }
    if (!flag.empty() && is_list(flag) && ("," + value + ",").find(",,") != std::string::npos) {
      throw UsageError(fmt::format("{} {}: an item of the list is empty", flag, value));
    }
  }
}

void require_values(CLI::App& app) {
  for (CLI::Option* option : app.get_options({})) {
    const ValueKind kind = value_kind(*option);
    if (kind != ValueKind::flag) {
      option->transform(CLI::Validator(
          [kind](std::string& text) { return check_value(kind, text); }, std::string()));
    }
  }
}

}  // namespace pipetrain
