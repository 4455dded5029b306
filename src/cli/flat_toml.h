#pragma once

#include <string>
#include <vector>

namespace pipetrain {

struct TomlValue {
  enum class Kind { text, integer, number, boolean };
  Kind kind = Kind::text;
  std::string text;  // without quotes and escapes; a number without underscores and leading +
};

struct TomlEntry {
  std::string key;
  int line = 0;  // 1 is the first
  bool array = false;
  std::vector<TomlValue> values;  // one unless it is an array
};

// Reads the part of TOML 1.0 that a flat file of flags needs: comments, bare and quoted keys,
// strings on one line, decimal integers, floats, booleans, and arrays of these. Throws UsageError
// that starts with `source` and the line for everything else: tables, dotted keys, nested arrays,
// inline tables, dates, multi-line strings, keys given twice.
std::vector<TomlEntry> parse_flat_toml(const std::string& text, const std::string& source);

}  // namespace pipetrain
