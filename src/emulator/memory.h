#pragma once

#include <cstddef>
#include <cstdint>

namespace emulator {

// What CUDA knows of an address.
enum class Place { pageable, pinned, device };
struct Location {
  Place place = Place::pageable;
  int device = -1;
  size_t bytes = 0;  // from the pointer to the end of its allocation
};
Location locate(const void* pointer);

}  // namespace emulator
