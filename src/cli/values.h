#pragma once

#include <CLI/App.hpp>

namespace pipetrain {

// What an option's value is: text, or a number that is at least 0 (count), whole (integer) or any.
enum class ValueKind { flag, text, count, integer, number };
ValueKind value_kind(const CLI::Option& option);

// Makes every option of `app` that was added before refuse empty values and what is no number where
// one is needed. CLI11 alone takes an empty value for 0, cuts off numbers that are too large, and
// reads 010 as 8.
void require_values(CLI::App& app);

}  // namespace pipetrain
