#pragma once

#include <functional>

#include "pipetrain/comm/control.h"
#include "pipetrain/error.h"

namespace pipetrain {

// An error that every rank throws.
class AgreedError : public Error {
 public:
  using Error::Error;
};

// What is said of std::bad_alloc, which does not fit.
inline constexpr char host_memory_exhausted[] = "the host's memory is too small for these flags";

// Runs `work` on every rank of `control` (collective). If it throws an Error on any of them, every
// rank throws the error of the first one, so that no rank goes on to wait for one that has left. An
// error that only some ranks found names the rank.
void agree(Control& control, const std::function<void()>& work);

}  // namespace pipetrain
