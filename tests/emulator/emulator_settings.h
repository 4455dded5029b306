#pragma once

#include <emulator.h>

#include <functional>

namespace pipetrain::test {

// Changes the emulator's settings and puts them back when the test ends.
class WithSettings {
 public:
  explicit WithSettings(const std::function<void(emulator::Settings&)>& change) {
    emulator::Settings changed = before_;
    change(changed);
    emulator::set_settings(changed);
  }
  ~WithSettings() { emulator::set_settings(before_); }

 private:
  const emulator::Settings before_ = emulator::settings();
};

}  // namespace pipetrain::test
