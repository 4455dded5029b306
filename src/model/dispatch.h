#pragma once

#include "kernels/types.h"
#include "pipetrain/error.h"
#include "pipetrain/model/config.h"

namespace pipetrain {

// Calls f.template operator()<T>() with the element type of a precision.
template <typename F>
auto with_element_type(Precision precision, F f) {
  switch (precision) {
    case Precision::fp32:
      return f.template operator()<float>();
    case Precision::bf16:
      return f.template operator()<kernels::bf16>();
    case Precision::fp64:
#ifdef PIPETRAIN_HOST
      return f.template operator()<double>();
#else
      break;
#endif
  }
  throw InternalError("no kernels for precision " + to_string(precision));
}

}  // namespace pipetrain
