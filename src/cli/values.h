#pragma once

#include <CLI/App.hpp>
#include <string>
#include <vector>

namespace pipetrain {

// What an option's value is: text, or a number that is at least 0 (count), whole (integer) or any.
enum class ValueKind { flag, text, count, integer, number };
ValueKind value_kind(const CLI::Option& option);

// Makes every option of `app` that was added before refuse empty values and what is no number where
// one is needed. CLI11 alone takes an empty value for 0, cuts off numbers that are too large, and
// reads 010 as 8.
void require_values(CLI::App& app);

// Throws UsageError where an item of a comma list is empty, as in 1,,2: CLI11 drops it.
void require_list_items(const CLI::App& main, const std::vector<std::string>& arguments);

}  // namespace pipetrain
