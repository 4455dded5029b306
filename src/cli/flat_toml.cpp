#include "cli/flat_toml.h"

#include <fmt/format.h>

#include <cstdint>
#include <cstdlib>
#include <set>
#include <string_view>

#include "pipetrain/error.h"

namespace pipetrain {
namespace {

constexpr std::string_view digits = "0123456789";
constexpr std::string_view key_characters =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";

std::string utf8(uint32_t code) {
  std::string text;
  if (code < 0x80) {
    return {char(code)};
  }
  if (code < 0x800) {
    text += char(0xc0 | code >> 6);
  } else if (code < 0x10000) {
    text += char(0xe0 | code >> 12);
    text += char(0x80 | (code >> 6 & 0x3f));
  } else {
    text += char(0xf0 | code >> 18);
    text += char(0x80 | (code >> 12 & 0x3f));
    text += char(0x80 | (code >> 6 & 0x3f));
  }
  return text + char(0x80 | (code & 0x3f));
}

class Parser {
 public:
  Parser(const std::string& text, const std::string& source) : text_(text), source_(source) {}

  std::vector<TomlEntry> parse() {
    std::vector<TomlEntry> entries;
    std::set<std::string> keys;
    if (text_.starts_with("\xef\xbb\xbf")) {  // a byte order mark
      at_ = 3;
    }
    for (skip_lines(); !at_end(); skip_lines()) {
      entries.push_back(entry());
      if (!keys.insert(entries.back().key).second) {
        fail(fmt::format("key '{}' is given twice", entries.back().key));
      }
      skip_spaces();
      if (!at_end() && peek() != '\n' && peek() != '#') {
        fail("more than one value; several stand in an array: [a, b]");
      }
    }
    return entries;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw UsageError(fmt::format("{}: line {}: {}", source_, line_, what));
  }

  bool at_end() const { return at_ == text_.size(); }
  char peek() const { return at_end() ? '\0' : text_[at_]; }
  bool next_is(std::string_view word) const {
    return std::string_view(text_).substr(at_).starts_with(word);
  }
  bool take(char c) {
    const bool there = !at_end() && peek() == c;
    at_ += there ? 1 : 0;
    return there;
  }

  void skip_spaces() {
    while (take(' ') || take('\t') || (next_is("\r\n") && take('\r'))) {
    }
  }

  // Spaces, comments and ends of lines.
  void skip_lines() {
    for (skip_spaces(); !at_end(); skip_spaces()) {
      if (take('#')) {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (take('\n')) {
        ++line_;
      } else {
        return;
      }
    }
  }

  TomlEntry entry() {
    if (peek() == '[') {
      fail("sections are not supported: the file must be flat, keys only");
    }
    TomlEntry result;
    result.line = line_;
    result.key = key();
    skip_spaces();
    if (peek() == '.') {
      fail("dotted keys are not supported: the file must be flat, keys only");
    }
    if (!take('=')) {
      fail(fmt::format("'{}' is not followed by = and a value", result.key));
    }
    skip_spaces();
    result.array = peek() == '[';
    if (result.array) {
      result.values = array();
    } else {
      result.values = {value()};
    }
    return result;
  }

  std::string key() {
    if (peek() == '"' || peek() == '\'') {
      return quoted();
    }
    const std::string name = word(key_characters);
    if (name.empty()) {
      fail("a line must be: key = value");
    }
    return name;
  }

  std::string word(std::string_view allowed) {
    const size_t begin = at_;
    at_ = std::min(text_.find_first_not_of(allowed, at_), text_.size());
    return text_.substr(begin, at_ - begin);
  }

  std::vector<TomlValue> array() {
    std::vector<TomlValue> values;
    take('[');
    for (skip_lines(); !take(']'); skip_lines()) {
      if (at_end()) {
        fail("the array has no ]");
      }
      values.push_back(value());
      skip_lines();
      if (!take(',') && peek() != ']') {
        fail("values of an array are separated by commas");
      }
    }
    return values;
  }

  TomlValue value() {
    if (peek() == '"' || peek() == '\'') {
      return {TomlValue::Kind::text, quoted()};
    }
    const std::string text = word("+.:" + std::string(key_characters));
    if (text == "true" || text == "false") {
      return {TomlValue::Kind::boolean, text};
    }
    const TomlValue number = number_of(text);
    if (number.text.empty()) {
      fail(
          fmt::format("'{}' is no value: a string in quotes, a decimal number, true, false, or an "
                      "array of these is needed",
                      text.empty() ? std::string(1, peek()) : text));
    }
    return number;
  }

  // Without text if it is none.
  static TomlValue number_of(const std::string& text) {
    std::string_view rest = text;
    TomlValue number = {TomlValue::Kind::integer, ""};
    if (rest.starts_with('-')) {
      number.text = "-";
    }
    rest.remove_prefix(rest.starts_with('-') || rest.starts_with('+') ? 1 : 0);
    // Digits; single underscores between them.
    const auto take_digits = [&] {
      bool valid = false;
      while (!rest.empty() && digits.find(rest.front()) != std::string_view::npos) {
        number.text += rest.front();
        rest.remove_prefix(1);
        valid = true;
        if (rest.size() > 1 && rest[0] == '_' && digits.find(rest[1]) != std::string_view::npos) {
          rest.remove_prefix(1);
        }
      }
      return valid;
    };
    if (rest == "inf" || rest == "nan") {
      return {TomlValue::Kind::number, number.text + std::string(rest)};
    }
    const bool leading_zero =
        rest.size() > 1 && rest[0] == '0' && rest[1] != '.' && rest[1] != 'e' && rest[1] != 'E';
    bool valid = !leading_zero && take_digits();
    if (rest.starts_with('.')) {
      number.kind = TomlValue::Kind::number;
      number.text += '.';
      rest.remove_prefix(1);
      valid = valid && take_digits();
    }
    if (rest.starts_with('e') || rest.starts_with('E')) {
      number.kind = TomlValue::Kind::number;
      number.text += 'e';
      rest.remove_prefix(1);
      if (rest.starts_with('-') || rest.starts_with('+')) {
        number.text += rest.front();
        rest.remove_prefix(1);
      }
      valid = valid && take_digits();
    }
    return valid && rest.empty() ? number : TomlValue{};
  }

  std::string quoted() {
    const char quote = peek();
    if (next_is("\"\"\"") || next_is("'''")) {
      fail("strings of several lines are not supported");
    }
    take(quote);
    std::string result;
    while (!take(quote)) {
      const char c = peek();
      if (at_end() || c == '\n') {
        fail("a string has no end");
      }
      if (static_cast<unsigned char>(c) < ' ' && c != '\t') {
        fail("a control character in a string; write it as an escape");
      }
      ++at_;
      result += c == '\\' && quote == '"' ? escape() : std::string(1, c);
    }
    return result;
  }

  std::string escape() {
    constexpr std::string_view names = "btnfr\"\\";
    constexpr std::string_view characters = "\b\t\n\f\r\"\\";
    const char c = peek();
    at_ += at_end() ? 0 : 1;
    if (const size_t found = names.find(c); found != std::string_view::npos) {
      return {characters[found]};
    }
    if (c != 'u' && c != 'U') {
      fail(fmt::format("unknown escape \\{} in a string; in single quotes \\ is itself", c));
    }
    const std::string hex = text_.substr(at_, c == 'u' ? 4 : 8);
    const bool whole = hex.size() == (c == 'u' ? 4u : 8u) &&
                       hex.find_first_not_of("0123456789abcdefABCDEF") == std::string::npos;
    const uint32_t code = whole ? uint32_t(std::strtoul(hex.c_str(), nullptr, 16)) : 0;
    if (code == 0 || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
      fail(fmt::format("\\{}{} is no character", c, hex));
    }
    at_ += hex.size();
    return utf8(code);
  }

  const std::string& text_;
  const std::string& source_;
  size_t at_ = 0;
  int line_ = 1;
};

}  // namespace

std::vector<TomlEntry> parse_flat_toml(const std::string& text, const std::string& source) {
  return Parser(text, source).parse();
}

}  // namespace pipetrain
